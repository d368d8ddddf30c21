# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of the module environment: the lock travels only to a host that has to build.

A converged host costs one call of the module. If the module answers that it has to build, it is called again with the
lock's text among its arguments. A folder of Ansible's on the host would stay there when the controller dies.
"""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.enplace.inference.plugins.module_utils.environment import Pin, canonical_name, parse_lock
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure, sha256_bytes

MODULE = "enplace.inference.environment"


def would_be_installed(
    pins: t.Sequence[Pin], platform: t.Mapping[str, str], aliases: t.Sequence[t.Mapping[str, str]]
) -> list[str]:
    """``name==version`` of the pins whose markers hold on a host, and of the aliases, sorted.

    ``platform`` is what the host says of itself: python_full_version (empty if it has no interpreter yet: then every
    pin counts) and platform_machine.
    """
    # A requirement of ansible-core itself; a managed host need not have it.
    from packaging.markers import Marker

    version = platform.get("python_full_version", "")
    known = {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": platform.get("platform_machine", ""),
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": version,
        "python_version": ".".join(version.split(".")[:2]),
        "sys_platform": "linux",
    }
    names = {
        f"{pin.name}=={pin.version}"
        for pin in pins
        if not pin.marker or not version or Marker(pin.marker).evaluate(known)
    }
    names.update("{}=={}".format(canonical_name(alias["name"]), alias["version"]) for alias in aliases)
    return sorted(names)


def lines(names: t.Sequence[str]) -> str:
    return "".join(name + "\n" for name in names)


class ActionModule(ActionBase):
    """Runs the module once, or a second time with the lock beside it."""

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        lock = arguments.pop("lock", None)
        if not lock:
            result.update(self._execute_module(MODULE, module_args=arguments, task_vars=task_vars))
            return result
        if arguments.get("requirements") or arguments.get("requirements_text"):
            raise AnsibleActionFail("lock and requirements exclude each other: the former is sent as the latter")
        path, text, pins = self._read_lock(str(lock))
        sha256 = sha256_bytes(text)
        if arguments.get("lock_sha256") not in (None, "", sha256):
            raise AnsibleActionFail(
                str(
                    Failure(
                        what="the lock file is not the one that was asked for",
                        where=path,
                        expected="sha256 {}".format(arguments["lock_sha256"]),
                        found=f"sha256 {sha256}",
                        todo="resolve the recipe again, or put the right file there",
                    )
                )
            )
        arguments["lock_sha256"] = sha256
        result.update(self._execute_module(MODULE, module_args=arguments, task_vars=task_vars))
        if not result.pop("needs_requirements", False) or result.get("failed"):
            return result
        platform = result.pop("platform", {})
        if self._task.check_mode:
            before = result.get("distributions", [])
            after = would_be_installed(pins, platform, arguments.get("aliases") or [])
            header = str(arguments.get("path"))
            result["distributions"] = after
            result["diff"] = {
                "before_header": header,
                "after_header": header,
                "before": lines(before),
                "after": lines(after),
            }
            return result
        built = self._execute_module(
            MODULE, module_args={**arguments, "requirements_text": text.decode("utf-8")}, task_vars=task_vars
        )
        built.get("invocation", {}).get("module_args", {}).pop("requirements_text", None)
        # The first call knows what was found, the second what came of it.
        return {**result, "changed": False, **built, "found": result["found"]}

    def _read_lock(self, lock: str) -> tuple[str, bytes, list[Pin]]:
        """The lock's path, its bytes and its pins."""
        try:
            path = str(self._find_needle("files", lock))
            with open(path, "rb") as stream:
                text = stream.read()
            return path, text, parse_lock(text.decode("utf-8"), path)
        except (AnsibleError, OSError, UnicodeDecodeError) as error:
            raise AnsibleActionFail(f"the lock file {lock} cannot be read: {error}") from error
        except Failure as failure:
            raise AnsibleActionFail(str(failure)) from failure
