# SPDX-License-Identifier: Apache-2.0
"""Role verify: a report with the evidence of every check, the same on the host and on the controller."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from testinfra.host import Host

ROOT = Path(__file__).parents[3]
RECIPE = yaml.safe_load((ROOT / "recipes" / "enplace" / "smoke" / "recipe.yaml").read_text())
NOT_SIMULATED = yaml.safe_load((ROOT / "molecule" / "inventory.yml").read_text())["all"]["vars"]["not_simulated"]
CHECKS = [c for c in RECIPE["variants"]["cpu"]["checks"] if c["check"] not in NOT_SIMULATED]
REPORT = "/var/lib/enplace/reports/simulated/latest.json"


@pytest.fixture
def report(host: Host) -> dict[str, Any]:
    return json.loads(host.file(REPORT).content_string)  # type: ignore[no-any-return]


def test_every_check_passed_with_evidence(report: dict[str, Any]) -> None:
    assert [check["name"] for check in report["checks"]] == [check["check"] for check in CHECKS]
    assert {check["status"] for check in report["checks"]} == {"pass"}
    assert all(check["evidence"] for check in report["checks"])


def test_the_report_names_what_was_checked(host: Host, report: dict[str, Any]) -> None:
    assert report["subject"]["model"] == "enplace/smoke"
    invocation = host.check_output("systemctl show --value --property InvocationID enplace-simulated.service")
    assert invocation in host.file(REPORT).content_string


def test_the_controller_has_the_same_report(report: dict[str, Any]) -> None:
    assert json.loads((ROOT / ".lab" / "reports" / "molecule1" / "simulated.json").read_text()) == report


def test_the_report_is_no_secret_and_nobody_elses_to_change(host: Host) -> None:
    stored = host.file(REPORT)
    assert (stored.user, stored.mode & 0o022) == ("root", 0)
