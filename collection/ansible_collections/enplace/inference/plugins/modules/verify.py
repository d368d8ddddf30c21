#!/usr/bin/python
# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: verify
short_description: Check that a running server is and does what its recipe says
version_added: "1.0.0"
description:
  - Runs a recipe's checks against a running OpenAI-compatible server, from the host it runs on, and stores a report
    with the evidence of each.
  - Every check ends as C(pass), C(fail), C(refused) (as its recipe declares, and as good as passed) or C(not run).
    Between checks the server must stay healthy and one and the same process, and must itself have finished as many
    requests as were answered.
  - Where the stored report is whole, of the same release, engine, checks and address, passed, and of the same run of
    the unit, nothing is asked and nothing changes.
requirements:
  - openai (Python library) in the interpreter that runs the module, unless the stored report still holds
options:
  url:
    description: Address of the server, without C(/v1).
    type: str
    required: true
  model:
    description: Name the model is served under.
    type: str
    required: true
  checks:
    description:
      - The checks, in order. Each is a mapping with the check's name as C(check) and the parameters of that check.
      - The names are C(identity), C(known_answers), C(known_answers_in_flight), C(logprobs), C(usage), C(tool_call),
        C(tool_call_streamed), C(tool_result), C(prompt_logprobs), C(json_schema), C(logit_bias), C(min_p),
        C(min_tokens), C(bad_words), C(seed), C(prefix_cache), C(needles), C(draft), C(kv_pool), C(libraries),
        C(log_line), C(no_errors) and C(healthy).
    type: list
    elements: dict
    required: true
  engine:
    description: The engine that must answer.
    type: dict
    required: true
    suboptions:
      name:
        description: Name of the engine.
        type: str
        required: true
      version:
        description: Its version; what C(/version) says must be this, with or without a local part.
        type: str
        required: true
  release:
    description: Digest of the release that is verified.
    type: str
    required: true
  recipe:
    description: Recipe and variant, for the report.
    type: str
    default: ""
  api_key_file:
    description:
      - File on the host with the key that the server wants, a plain file of root, mode 0600, with one line of at least
        16 characters. Empty for a server without a key.
      - The key is shown nowhere. A server that answers without it does not pass.
    type: path
    default: ""
  unit:
    description:
      - The systemd unit that serves. It must be active and stay one run while it is checked.
      - Without a unit the checks C(libraries), C(log_line) and C(no_errors) end as C(not run).
      - Without it no stored report holds, for nothing proves that the server is still the same one.
    type: str
  report:
    description:
      - File on the host that holds the last report. Earlier ones are kept beside it, ten in all. A run that is
        interrupted leaves what it has found in C(unfinished.json) beside it; the next run makes an earlier report of
        that.
      - Without it nothing is stored, and the checks always run.
    type: path
  suite:
    description:
      - What the checks are for. With V(gate) and V(full) they run once, with V(bench) the figures of O(bench) are
        measured after them, and with V(soak) they run again and again for O(soak_hours), until one does not pass.
      - The list of O(checks) is taken as it is given.
    type: str
    choices: [gate, full, bench, soak]
    default: gate
  soak_hours:
    description: How long the suite V(soak) goes on. A round that was begun is ended.
    type: float
    default: 0
  bench:
    description: Workloads of the suite V(bench), as in a recipe.
    type: list
    elements: dict
    default: []
  figures:
    description: Figures of the recipe, which those measured are compared with.
    type: list
    elements: dict
    default: []
  host:
    description: Facts about the host, for the report.
    type: dict
    default: {}
  again:
    description: Ask even where the stored report still holds.
    type: bool
    default: false
attributes:
  check_mode:
    description: Asks and writes nothing; tells whether the checks would run, and why.
    support: full
  diff_mode:
    description: Shows the results of the checks before and after.
    support: full
  platform:
    description: Hosts it can be used on.
    support: full
    platforms: linux
author:
  - the enplace authors (@enplace)
"""

EXAMPLES = r"""
- name: Check the running server
  enplace.inference.verify:
    url: http://127.0.0.1:8000
    model: enplace/smoke
    engine:
      name: vllm
      version: 0.28.0
    release: 5f0c3ad1e2b47a90c1d2e3f4a5b6c7d8e9f00112233445566778899aabbccdde
    unit: enplace-enplace-smoke-cpu.service
    report: /var/lib/enplace/reports/enplace-smoke-cpu/latest.json
    checks:
      - check: identity
        context: 4096
      - check: known_answers
        prompts:
          - ask: What is 17 + 25? Reply with the number only.
            expect: ["42"]
          - ask: What is the capital of France? Reply with one word.
            expect: [Paris]
      - check: known_answers_in_flight
        requests: 8
  vars:
    ansible_python_interpreter: /opt/enplace/environments/0123456789ab/bin/python
"""

RETURN = r"""
report:
  description: The report, or the stored one where it still holds.
  returned: when there is one
  type: dict
evidence:
  description: V(stored) where the stored report holds, V(new) where the checks ran, V(none) in check mode otherwise.
  returned: always
  type: str
verified_at:
  description: When the checks of the report ended, UTC.
  returned: when there is a report
  type: str
  sample: "2026-12-01T01:30:00Z"
why:
  description: Why the checks ran, or would run; empty where the stored report holds.
  returned: always
  type: str
failures:
  description: One message for each check that did not pass, with what was expected, what was found and what to do.
  returned: when the checks ran
  type: list
  elements: str
"""

import importlib.util
from functools import partial
from typing import Any

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.enplace.inference.plugins.module_utils.api_key import read_key
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure
from ansible_collections.enplace.inference.plugins.module_utils.verify import child
from ansible_collections.enplace.inference.plugins.module_utils.verify import report as reports
from ansible_collections.enplace.inference.plugins.module_utils.verify.checks import BENCH, GATE, SUITES


def has_client() -> bool:
    """Whether the library that the checks ask through is there. It is not imported: a stored report needs none."""
    return importlib.util.find_spec("openai") is not None


def look(module: AnsibleModule) -> reports.Unit | None:
    """The unit as it is now; None where no unit is given."""
    name = module.params["unit"]
    if not name:
        return None
    argv = [
        module.get_bin_path("systemctl", required=True),
        "show",
        "-p",
        reports.UNIT_PROPERTIES,
        "--",
        name,
    ]
    rc, output, errors = module.run_command(argv)
    if rc != 0:
        module.fail_json(
            msg=f"systemctl cannot tell the state of {name}: {errors.strip() or output.strip()} (return code {rc})"
        )
    return reports.parse_unit(name, output)


def measuring(module: AnsibleModule, subject: reports.Subject) -> Any:
    """What measures the figures. It needs the client, so it is imported where it is asked for."""
    from ansible_collections.enplace.inference.plugins.module_utils.verify import bench

    key = read_key(subject.api_key_file) if subject.api_key_file else ""
    target = bench.Target(subject.url, subject.model, key, folder=module.tmpdir, probed=bool(module.params["unit"]))
    return partial(bench.measure, target, module.params["bench"], module.params["figures"])


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "model": {"type": "str", "required": True},
            "checks": {"type": "list", "elements": "dict", "required": True},
            "engine": {
                "type": "dict",
                "required": True,
                "options": {
                    "name": {"type": "str", "required": True},
                    "version": {"type": "str", "required": True},
                },
            },
            "release": {"type": "str", "required": True},
            "recipe": {"type": "str", "default": ""},
            "api_key_file": {"type": "path", "default": "", "no_log": False},
            "unit": {"type": "str"},
            "report": {"type": "path"},
            "suite": {"type": "str", "choices": list(SUITES), "default": GATE},
            "soak_hours": {"type": "float", "default": 0},
            "bench": {"type": "list", "elements": "dict", "default": []},
            "figures": {"type": "list", "elements": "dict", "default": []},
            "host": {"type": "dict", "default": {}},
            "again": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    given = module.params
    problems = child.problems_of(given)
    if problems:
        module.fail_json(
            msg="\n".join(["These checks cannot be run; nothing was asked:", *problems]), problems=problems
        )
    subject = child.subject_of(given)
    unit = look(module)
    path = given["report"]
    stored, why = reports.read_report(path) if path else (None, "nothing is stored")
    if stored is not None:
        why = "asked to run them again" if given["again"] else reports.why_not(stored, subject, unit)
        if not why:
            module.exit_json(changed=False, report=stored, evidence="stored", verified_at=stored["ended"], why="")
    result: dict[str, Any] = {"changed": True, "why": why}
    before = reports.summary(stored)
    if module.check_mode:
        after = f"{len(subject.checks)} checks would run: {why}\n"
        module.exit_json(evidence="none", diff=_diff(path, before, after), **result)
    if (unit is None or unit.active == "active") and not has_client():
        module.fail_json(msg=missing_required_lib("openai", reason="to ask the server"))
    try:
        report = reports.run(
            subject,
            given["host"],
            unit,
            lambda: look(module),
            reports.keep_unfinished(path) if path else None,
            soak_s=given["soak_hours"] * 3600,
            measure=measuring(module, subject) if given["suite"] == BENCH else None,
        )
    except Failure as failure:
        module.fail_json(msg=str(failure), **failure.fields(), **result)
    result.update(
        report=report,
        evidence="new",
        verified_at=report["ended"],
        failures=reports.messages(report),
        diff=_diff(path, before, reports.summary(report)),
    )
    try:
        if path:
            reports.store(path, report)
    except OSError as error:
        module.fail_json(msg=f"The report cannot be written to {path}: {error}. The checks ran; see report.", **result)
    if not report["all_passed"]:
        bad = sum(not reports.good(check) for check in report["checks"])
        told = (
            f"{bad} of {len(report['checks'])} checks did not pass" if bad else "All checks passed, and not all is well"
        )
        head = f"{told} at {subject.url} ({subject.model}):"
        where = [f"The whole report: {path}"] if path else []
        module.fail_json(msg="\n".join([head, *result["failures"], *where]), **result)
    module.exit_json(**result)


def _diff(path: str | None, before: str, after: str) -> dict[str, str]:
    name = path or "report"
    return {"before_header": name, "before": before, "after_header": name, "after": after}


if __name__ == "__main__":
    main()
