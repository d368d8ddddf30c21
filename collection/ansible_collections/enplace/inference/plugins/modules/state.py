#!/usr/bin/python
# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: state
short_description: How a host differs from its plan, in one call and without changing it
version_added: "1.0.0"
description:
  - Compares everything that a plan names with what is there, for all recipes of the host at once. What it finds is
    what a run would have to do something about; a host that is as planned costs nothing more.
  - Packages, service user, directories, tools, environments, weights, releases, units, drop-ins, what is enabled and
    active, open activations, and whether the stored reports speak for what runs now.
  - The options are the parts of the plan that M(enplace.inference.resolve) makes, which calls this module itself.
options:
  host:
    description: Packages, user, directories and tools.
    type: dict
    required: true
  environments:
    description: The environments, with path, digest and assertions.
    type: list
    elements: dict
    required: true
  weights:
    description: The models and the cache they lie in.
    type: dict
    required: true
  releases:
    description: The releases, with slug, recipe, digest, path, unit and files.
    type: list
    elements: dict
    required: true
  servers:
    description: By slug, what else is to be known of a server; above all what its report must say.
    type: dict
    required: true
  wanted:
    description: Slugs of every recipe that the host is to serve.
    type: list
    elements: str
    required: true
  deep:
    description:
      - Hash every file of the environments (against RECORD), of the weights (against the recipe) and of the releases
        (against their manifests), several at a time. Takes as long as reading all of it from the disk does.
    type: bool
    default: false
attributes:
  check_mode:
    description: Can run in check mode and never changes anything.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
  platform:
    description: Hosts it can be used on.
    support: full
    platforms: linux
seealso:
  - module: enplace.inference.resolve
author:
  - the enplace authors (@enplace)
"""

EXAMPLES = r"""
- name: Make a plan, and compare the host with it
  enplace.inference.resolve:
  register: resolved

- name: Hash everything that the plan names
  enplace.inference.state:
    host: "{{ resolved.plan.host }}"
    environments: "{{ resolved.plan.environments }}"
    weights: "{{ resolved.plan.weights }}"
    releases: "{{ resolved.plan.releases }}"
    servers: "{{ resolved.plan.servers }}"
    wanted: "{{ resolved.plan.wanted }}"
    deep: true
  register: found
  failed_when: not found.converged
"""

RETURN = r"""
converged:
  description: Whether nothing differs.
  returned: success
  type: bool
differences:
  description: Everything that differs, by name.
  returned: success
  type: list
  elements: dict
  contains:
    part:
      description: One of V(host), V(tools), V(environments), V(weights), V(releases), V(reports), V(activation).
      type: str
    what:
      description: What it is, such as V(package), V(file) or V(drop-in).
      type: str
    path:
      description: Where it is, or its name.
      type: str
    expected:
      description: What the plan says.
      type: str
    found:
      description: What is there.
      type: str
damaged:
  description: Those of O(deep) that no later run mends by itself.
  returned: success
  type: list
  elements: dict
parts:
  description:
    - Whether each part is as planned. C(host) and C(tools) are V(true) or V(false), C(environments) has them by path,
      C(weights) by repo@revision, C(releases) and C(reports) by slug.
  returned: success
  type: dict
servers:
  description:
    - By slug what serves. The keys are recipe, unit, release, current, previous, standby, active, enabled, since,
      restarts, dropins (the owner's own), url, verified_at, checks and report (if it speaks for what runs now).
  returned: success
  type: dict
journal:
  description: The activation that is open, or null.
  returned: success
  type: dict
deep:
  description: Whether everything was hashed.
  returned: success
  type: bool
seconds:
  description: How long it took on the host.
  returned: success
  type: float
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.enplace.inference.plugins.module_utils import state
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure


def main() -> None:
    dicts = {"type": "list", "elements": "dict", "required": True}
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "dict", "required": True},
            "environments": dicts,
            "weights": {"type": "dict", "required": True},
            "releases": dicts,
            "servers": {"type": "dict", "required": True},
            "wanted": {"type": "list", "elements": "str", "required": True},
            "deep": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    plan = {key: value for key, value in module.params.items() if key != "deep"}
    try:
        result = state.look(plan, module.params["deep"])
    except Failure as failure:
        module.fail_json(msg=str(failure), failure=failure.fields())
    except OSError as error:
        module.fail_json(msg=f"The host cannot be looked at: {error}")
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
