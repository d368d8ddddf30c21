# SPDX-License-Identifier: Apache-2.0
"""Role host: packages, user, directories and tools, as the host itself tells."""

from __future__ import annotations

import json

import pytest
from testinfra.host import Host


@pytest.mark.parametrize("package", ["g++", "libnuma1", "python3-dev"])
def test_packages_are_installed(host: Host, package: str) -> None:
    assert host.package(package).is_installed


def test_the_service_user_is_a_system_user_who_cannot_log_in(host: Host) -> None:
    user = host.user("enplace")
    assert user.uid < 1000
    assert user.group == "enplace"
    assert user.home == "/var/lib/enplace"
    assert user.shell == "/usr/sbin/nologin"
    # Locked: no password opens it.
    assert host.check_output("passwd --status enplace").split()[1] == "L"


@pytest.mark.parametrize(
    ("path", "owner", "mode"),
    [
        ("/opt/enplace", "root", 0o755),
        ("/opt/enplace/tools", "root", 0o755),
        ("/opt/enplace/environments", "root", 0o755),
        ("/opt/enplace/releases", "root", 0o755),
        ("/var/cache/enplace", "root", 0o755),
        ("/var/lib/enplace", "enplace", 0o755),
        ("/var/lib/enplace/hub", "enplace", 0o750),
        ("/var/lib/enplace/reports", "root", 0o755),
    ],
)
def test_directories_have_owner_and_mode(host: Host, path: str, owner: str, mode: int) -> None:
    directory = host.file(path)
    assert directory.is_directory
    assert (directory.user, directory.group, directory.mode) == (owner, owner, mode)


def test_a_setting_of_systemd_is_written_and_read(host: Host) -> None:
    setting = host.file("/etc/systemd/system/user.slice.d/50-enplace.conf")
    assert (setting.user, setting.mode, setting.content_string) == ("root", 0o644, "[Slice]\nMemoryMin=4G\n")
    assert host.check_output("systemctl show -P MemoryMin user.slice") == str(4 * 1024**3)


def test_there_is_one_set_of_tools_and_it_works(host: Host) -> None:
    sealed = host.check_output("find /opt/enplace/tools -mindepth 2 -maxdepth 2 -name enplace-environment.json").split()
    assert len(sealed) == 1
    tools = sealed[0].rpartition("/")[0]
    assert host.check_output("ls /opt/enplace/tools | wc -l") == "1"
    assert json.loads(host.file(sealed[0]).content_string)["digest"].startswith(tools.rpartition("/")[2])
    assert host.check_output(f"{tools}/bin/uv --version").startswith("uv 0.13.9")
    # The service user, who downloads with it, must be able to run it.
    assert host.check_output(f"runuser -u enplace -- {tools}/bin/hf --version").split()[-1] == "2.4.0"


def test_nobody_but_root_can_change_the_tools(host: Host) -> None:
    assert host.check_output(r"find /opt/enplace \( ! -user root -o -perm /022 \) ! -type l") == ""
