#!/usr/bin/python
# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: release
short_description: Bring a release of a recipe into service, seal it, or go back
version_added: "1.0.0"
description:
  - Stages the files of a release in a directory named by its digest, installs its systemd unit, starts it and waits
    until it has answered a real completion.
  - A start that fails puts the last verified release back and starts it again.
  - A unit is enabled for boot only by O(state=sealed), which is asked for after its checks have passed.
options:
  path:
    description: Directory of the release on the host; its last part is the short digest.
    type: path
    required: true
  unit:
    description: Name of the systemd unit.
    type: str
    required: true
  files:
    description: The release's files, name to whole content. C(unit.service) is installed as the unit.
    type: dict
    required: true
  ready_timeout_s:
    description: Seconds from start to the first completion before the start counts as failed.
    type: int
    default: 900
  state:
    description:
      - V(active) stages, starts and waits for an answer.
      - V(sealed) enables the unit for boot and records the release as the verified one; it must be running.
      - V(reverted) goes back to the last verified release, or removes the unit where there is none.
    type: str
    choices: [active, sealed, reverted]
    default: active
attributes:
  check_mode:
    description: Tells what would change.
    support: full
  diff_mode:
    description: Shows the unit before and after.
    support: full
  platform:
    description: Hosts it can be used on.
    support: full
    platforms: linux
author:
  - the enplace authors (@enplace)
"""

EXAMPLES = r"""
- name: Start a release
  enplace.inference.release:
    path: /opt/enplace/releases/enplace-smoke-cpu/0123456789ab
    unit: enplace-enplace-smoke-cpu.service
    files:
      unit.service: "{{ unit_text }}"
      ready.py: "{{ lookup('ansible.builtin.file', 'ready.py') }}"
      release.json: "{{ manifest | to_nice_json }}"
"""

RETURN = r"""
plan:
  description: What was done, or would be done, in order.
  returned: always
  type: list
  elements: str
sealed:
  description: Whether the release was verified before and is enabled for boot.
  returned: success
  type: bool
ready_s:
  description: Seconds from the start to the first completion; absent when nothing was started.
  returned: when the unit was started
  type: float
invocation:
  description: systemd's identity of the unit's present run; empty when it does not run.
  returned: success
  type: str
detail:
  description: The last lines that the failed start wrote.
  returned: when a start failed
  type: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.enplace.inference.plugins.module_utils import release_old as releases
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure


def steps(release: releases.Release, state: releases.State, wanted: str) -> list[str]:
    """What `wanted` would do from `state`, in words."""
    if wanted == "reverted":
        return [f"stop {release.unit} and put the last verified release back"] if state.unit_before else []
    if wanted == "sealed":
        return (
            []
            if state.sealed and state.enabled
            else [f"enable {release.unit} and record {release.path.name} as verified"]
        )
    plan = [f"stage {release.path} ({', '.join(state.files)})"] if state.files else []
    if state.unit_differs:
        plan += [f"stop {release.unit}"] if state.active or state.starting else []
        plan.append(f"{'replace' if state.unit_before else 'install'} {release.unit_path}")
    if not state.serving and not (state.staged and not state.unit_differs and state.starting):
        plan.append(f"start {release.unit} and wait for a completion")
    return plan


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "unit": {"type": "str", "required": True},
            "files": {"type": "dict", "required": True},
            "ready_timeout_s": {"type": "int", "default": 900},
            "state": {"type": "str", "choices": ["active", "sealed", "reverted"], "default": "active"},
        },
        supports_check_mode=True,
    )
    options = module.params
    missing = {releases.UNIT, releases.MANIFEST} - set(options["files"])
    if missing:
        module.fail_json(
            msg=f"files: {', '.join(sorted(missing))} is missing; a release has {releases.UNIT} and {releases.MANIFEST}"
        )
    release = releases.Release(Path(options["path"]), options["unit"], options["files"], options["ready_timeout_s"])
    systemd = releases.Systemd()
    result: dict[str, object] = {}
    plan: list[str] = []
    try:
        state = releases.look(release, systemd)
        plan = steps(release, state, options["state"])
        result = {"changed": bool(plan), "plan": plan, "sealed": state.sealed and state.enabled}
        if module._diff and state.unit_differs and options["state"] == "active":
            after = release.files[releases.UNIT]
            result["diff"] = [
                {
                    "before_header": str(release.unit_path),
                    "after_header": str(release.unit_path),
                    "before": state.unit_before,
                    "after": after,
                }
            ]
        if plan and not module.check_mode:
            if options["state"] == "sealed":
                if not state.serving:
                    module.fail_json(
                        msg=f"{release.unit}: release {release.path.name} does not run; start it, verify it, seal it",
                        plan=plan,
                    )
                releases.seal(release, systemd)
                result["sealed"] = True
            elif options["state"] == "reverted":
                result["reverted"] = releases.revert(release, systemd)
            else:
                result["ready_s"] = round(releases.activate(release, state, systemd), 1)
        elif state.starting and options["state"] == "active" and not module.check_mode:
            # Started by a boot or by somebody else a moment ago: not a change of ours, but not an answer yet either.
            result["ready_s"] = round(releases.start(release, systemd), 1)
        result["invocation"] = systemd.show(release.unit).get("InvocationID", "")
    except (Failure, OSError) as error:
        failure = error if isinstance(error, Failure) else releases.cannot_write(release.path, error)
        module.fail_json(msg=str(failure), plan=plan, **failure.fields())
    module.exit_json(**result)


if __name__ == "__main__":
    main()
