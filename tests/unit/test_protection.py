# SPDX-License-Identifier: Apache-2.0
"""What protects logins where card and host share one memory: which files, and how a host's own are compared."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ansible_collections.enplace.inference.plugins.module_utils import host_facts
from ansible_collections.enplace.inference.plugins.plugin_utils.protection import folders_of, host_files


def test_only_hosts_of_one_memory_are_protected() -> None:
    assert host_files({"cpu", "gaudi2"}) == []
    paths = [item["path"] for item in host_files({"gb10"})]
    assert paths == sorted(paths)
    assert "/etc/systemd/system/user.slice.d/50-enplace.conf" in paths
    assert all(item["content"].startswith("# Written by enplace.") for item in host_files({"gb10"}))
    assert all(item["mode"] == "0644" for item in host_files({"gb10"}))


def test_the_engine_gets_nothing_of_what_its_slice_protects() -> None:
    asked = {
        item["path"].split("/")[4]: re.findall(r"MemoryMin=(\d+)M", item["content"])
        for item in host_files({"gb10"})[1:]
    }
    slice_has = int(asked.pop("system.slice.d")[0])
    assert sum(int(size) for sizes in asked.values() for size in sizes) == slice_has


def test_their_folders_are_made() -> None:
    folders = folders_of(host_files({"gb10"}))
    assert "/etc/systemd/system/user.slice.d" in folders
    assert "/etc/modules-load.d" not in folders, "it is there, and the distribution's"


def test_files_are_compared_by_content_owner_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "50-enplace.conf"
    wanted = [{"path": str(path), "content": "[Slice]\n", "mode": "0644"}]

    def found() -> list[str]:
        return [item["found"] for item in host_facts.files(wanted)]

    assert found() == ["no such file"]
    path.write_text("[Slice]\n")
    path.chmod(0o644)
    assert found() == []
    path.chmod(0o600)
    assert found() == ["mode 0600"]
    path.write_text("[Slice]\nMemoryMin=1G\n")
    assert found() == ["other content, mode 0600"]
    path.unlink()
    path.symlink_to("/dev/null")
    assert found() == ["no plain file"]
    if os.geteuid() == 0:
        path.unlink()
        path.write_text("[Slice]\n")
        path.chmod(0o644)
        os.chown(path, 65534, 65534)
        assert found() == [f"owner {host_facts._name(__import__('pwd').getpwuid, 65534)}"]
