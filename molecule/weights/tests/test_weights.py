# SPDX-License-Identifier: Apache-2.0
"""Role weights: the files on the host are those of the hub's folder, byte for byte, and where every client looks."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from testinfra.host import Host

HUB = Path(__file__).parents[3] / "tests" / "sim" / "hub" / "repositories" / "enplace"
REVISION = json.loads((HUB / "smoke.json").read_text())["revision"]
REPOSITORY = "/var/lib/enplace/hub/models--enplace--smoke"
SNAPSHOT = f"{REPOSITORY}/snapshots/{REVISION}"
FILES = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (HUB / "smoke").iterdir()}


def test_every_file_is_the_hubs(host: Host) -> None:
    assert len(FILES) > 3
    lines = host.check_output(f"cd {SNAPSHOT} && sha256sum *").splitlines()
    assert {name: digest for digest, name in (line.split() for line in lines)} == FILES


def test_it_is_the_standard_cache(host: Host) -> None:
    """Another tool finds it: links of a snapshot into the blobs, no network asked."""
    assert host.check_output(f"find {SNAPSHOT} -type l | wc -l") == str(len(FILES))
    assert host.check_output(f"find {REPOSITORY}/blobs -type f | wc -l") == str(len(FILES))
    hf = host.check_output("ls /opt/enplace/tools/*/bin/hf")
    offline = f"env HF_HUB_OFFLINE=1 HF_HUB_CACHE=/var/lib/enplace/hub HOME=/var/lib/enplace {hf}"
    found = host.check_output(f"runuser -u enplace -- {offline} download enplace/smoke --revision {REVISION}")
    assert SNAPSHOT in found


def test_the_service_user_owns_it_and_nothing_is_unfinished(host: Host) -> None:
    assert host.check_output(f"find {REPOSITORY} ! -user enplace") == ""
    assert host.check_output("find /var/lib/enplace/hub -name '*.incomplete'") == ""


def test_it_was_verified(host: Host) -> None:
    """What is remembered of the verification names every file with the digest it had."""
    remembered = host.check_output("cat $(find /var/lib/enplace/hub/enplace-verified -type f)")
    assert all(digest in remembered for digest in FILES.values())
