#!/usr/bin/python
# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: activation
short_description: Bring a release into service as a transaction, go back to the one before, or remove a recipe
version_added: "1.0.0"
description:
  - Brings a release of a recipe into service. What stands in its way is stopped, its memory is waited for, the release
    is started as a candidate, must answer a completion and pass its checks; only then it is installed and enabled.
  - Whatever fails, the candidate is removed and what was stopped is started again, asked for a completion, checked, and
    named in the message. A release that failed is not tried again unless O(retry).
  - Every phase is written to a journal on the host before it begins. The next call finishes or undoes what a power cut
    or a killed controller left open.
  - A host has one lock. Its holder is named; one whose controller is gone goes on to its end, and is waited for. That a
    controller is gone is seen where the connection broke, and by the controller itself of an earlier run of its own.
options:
  state:
    description:
      - V(active) brings O(release) into service.
      - V(previous) goes back to what the recipe O(slug) served before; without O(slug) it undoes the last activation,
        recipes that it retired included. The release that is left is not tried again unless O(retry).
      - V(absent) removes the recipe O(slug) with its units, releases and caches; its reports stay.
    type: str
    choices: [active, previous, absent]
    default: active
  release:
    description: The release, for O(state=active), as the plan of M(enplace.inference.resolve) has it.
    type: dict
    suboptions:
      slug:
        description: The recipe as it is named on the host; it names the unit and the folders.
        type: str
        required: true
      recipe:
        description: The recipe and its variant, for people.
        type: str
        default: ""
      digest:
        description: Digest of the release, 64 hexadecimal digits.
        type: str
        required: true
      path:
        description: Directory of the release on the host; its last part is the short digest.
        type: path
        required: true
      unit:
        description: Name of the systemd unit.
        type: str
        required: true
      files:
        description: The release's files, name to whole content.
        type: dict
        required: true
  slug:
    description: The recipe as it is named on the host, for O(state=previous) and O(state=absent).
    type: str
    default: ""
  wanted:
    description:
      - The recipes that the host is to serve, by slug. With O(state=active) all others are taken out of service; what
        is needed to serve them again stays.
      - Without it no other recipe is taken out of service.
    type: list
    elements: str
  in_use:
    description:
      - Environments and tools that are needed whatever the releases on the host name, as paths. All others that no
        release names and no process uses are removed after an activation.
      - Without it none is removed.
    type: list
    elements: path
  weights:
    description: With O(state=absent), remove the weights too that no other release names.
    type: bool
    default: false
  retry:
    description: Try a release again that failed before.
    type: bool
    default: false
  keep:
    description: Releases of a recipe that are kept, the present and the previous one among them.
    type: int
    default: 3
  holder:
    description: On whose behalf this is done, for the lock and the history; the controller's user and process if empty.
    type: str
    default: ""
  lock_timeout_s:
    description: >-
      Seconds to wait for another run that is at work on the host. One whose controller is gone is waited for.
    type: int
    default: 0
  memory_timeout_s:
    description: Seconds to wait until the memory of what was stopped is free again.
    type: int
    default: 180
  host:
    description: Facts about the host, for the report.
    type: dict
    default: {}
attributes:
  check_mode:
    description: Tells what would be done.
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
- name: Bring a release into service
  enplace.inference.activation:
    release: "{{ plan.release }}"
    wanted: [enplace-smoke-cpu]

- name: Go back to what a recipe served before
  enplace.inference.activation:
    state: previous
    slug: enplace-smoke-cpu

- name: Undo the last activation on the host
  enplace.inference.activation:
    state: previous

- name: Remove a recipe and its weights
  enplace.inference.activation:
    state: absent
    slug: enplace-smoke-cpu
    weights: true
"""

RETURN = r"""
plan:
  description: What was done, or would be done, in order.
  returned: success
  type: list
  elements: str
outcome:
  description:
    - V(converged) where there was nothing to do; V(activated); V(resumed) where the rest of an earlier run was done;
      V(reverted) where it failed and what was before is in service; V(unproven) where what serves does not pass its
      checks; V(rolled back); V(removed).
  returned: always, except in check mode
  type: str
reports:
  description: By slug, the reports of the checks of servers that run now; those that were started again included.
  returned: success, and where a release was not taken into service
  type: dict
report:
  description: The report of the checks of a release that was not taken into service.
  returned: on failure, when the checks ran
  type: dict
ready_s:
  description: Seconds from the start to the first completion.
  returned: when the unit was started
  type: float
seconds:
  description: Seconds that all of it took.
  returned: success
  type: float
recovered:
  description: What was finished or undone of an earlier run; empty where none was open.
  returned: success
  type: str
removed:
  description: Paths that were removed because nothing needs them any more.
  returned: success
  type: list
  elements: str
detail:
  description: The last lines that the failed start wrote.
  returned: on failure
  type: str
evidence:
  description: The file on the host with the evidence of the failure.
  returned: when a release was not taken into service
  type: str
held_by:
  description: What the lock of the host says of who holds it.
  returned: when another run is at work on the host
  type: str
failure:
  description: The error by field. The keys are what, where, expected, found and todo.
  returned: on failure
  type: dict
"""

import getpass
import os
import signal
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.enplace.inference.plugins.module_utils import activation
from ansible_collections.enplace.inference.plugins.module_utils import release as releases
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure, Held
from ansible_collections.enplace.inference.plugins.module_utils.machine import Machine
from ansible_collections.enplace.inference.plugins.module_utils.systemd import Systemd


def diff_of(path: Path, before: str, after: str) -> list[dict[str, str]]:
    """The installed unit before and after."""
    if before == after:
        return []
    return [{"before_header": str(path), "after_header": str(path), "before": before, "after": after}]


def run(module: AnsibleModule, activator: activation.Activator) -> dict[str, Any]:
    """Do what is asked for, or tell it in check mode; the module's result. Raises Failure or OSError."""
    asked = module.params
    layout = activator.layout
    slug = asked["slug"]
    release = releases.parse(asked["release"], layout) if asked["state"] == "active" else None
    unit = layout.units / releases.unit_of(release.slug if release else slug)
    before = releases.read_text(unit)
    if module.check_mode:
        after = before
        if release is not None:
            plan = activator.steps(release, releases.look(release, activator.systemd))
            after = release.files[releases.UNIT]
        elif asked["state"] == "absent":
            plan, after = activator.removal(slug, asked["weights"]), ""
        else:
            plan = activator.way_back(slug)
        result: dict[str, Any] = {"changed": bool(plan), "plan": plan}
        return {**result, "diff": diff_of(unit, before, after) if plan else []}
    if release is not None:
        done = activator.active(release)
    elif asked["state"] == "absent":
        done = activator.absent(slug, asked["weights"])
    else:
        done = activator.previous(slug)
    result = {name: value for name, value in vars(done).items() if value is not None}
    return {**result, "diff": diff_of(unit, before, releases.read_text(unit)) if slug or release else []}


def main() -> None:
    release = {
        "slug": {"type": "str", "required": True},
        "recipe": {"type": "str", "default": ""},
        "digest": {"type": "str", "required": True},
        "path": {"type": "path", "required": True},
        "unit": {"type": "str", "required": True},
        "files": {"type": "dict", "required": True},
    }
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["active", "previous", "absent"], "default": "active"},
            "release": {"type": "dict", "options": release},
            "slug": {"type": "str", "default": ""},
            "wanted": {"type": "list", "elements": "str"},
            "in_use": {"type": "list", "elements": "path"},
            "weights": {"type": "bool", "default": False},
            "retry": {"type": "bool", "default": False},
            "keep": {"type": "int", "default": 3},
            "holder": {"type": "str", "default": ""},
            "lock_timeout_s": {"type": "int", "default": 0},
            "memory_timeout_s": {"type": "int", "default": 180},
            "host": {"type": "dict", "default": {}},
        },
        required_if=[("state", "active", ["release"])],
        supports_check_mode=True,
    )
    asked = module.params
    if asked["state"] == "absent" and not asked["slug"]:
        module.fail_json(msg="state=absent needs slug: which recipe is to be removed")
    # A controller that goes away takes its terminal with it, and this has to go on to its end.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    options = activation.Options(
        wanted=asked["wanted"],
        retry=asked["retry"],
        keep=asked["keep"],
        holder=asked["holder"] or f"{getpass.getuser()}, process {os.getppid()}",
        lock_timeout_s=asked["lock_timeout_s"],
        memory_timeout_s=asked["memory_timeout_s"],
        in_use=asked["in_use"],
        host=asked["host"],
    )
    activator = activation.Activator(releases.Layout(), Systemd(), Machine(), options)
    try:
        result = run(module, activator)
    except activation.Unproven as unproven:
        module.fail_json(
            msg=str(unproven),
            outcome="unproven",
            detail=unproven.detail,
            failure=unproven.fields(),
            reports=dict(unproven.reports),
        )
    except activation.Refused as refused:
        more = {"report": refused.report} if refused.report else {}
        module.fail_json(
            msg=str(refused),
            outcome="reverted",
            detail=refused.detail,
            evidence=refused.evidence,
            failure=refused.fields(),
            reports=dict(refused.reports),
            **more,
        )
    except Held as held:
        module.fail_json(msg=str(held), held_by=held.found, failure=held.fields())
    except Failure as failure:
        module.fail_json(msg=str(failure), detail=failure.detail, failure=failure.fields())
    except OSError as error:
        module.fail_json(msg=f"{error.filename or 'a file'}: {error.strerror or error}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
