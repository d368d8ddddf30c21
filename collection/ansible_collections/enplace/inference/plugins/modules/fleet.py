#!/usr/bin/python
# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet
short_description: Offer a host's weights to other hosts, for the length of one run
version_added: "1.0.0"
author: The enplace authors (@enplace)
description:
  - With O(state=look) says which models the host has whole, by what earlier runs have verified. Nothing is hashed.
  - With O(state=offered) runs C(rsync --daemon) in the transient unit C(enplace-fleet), read-only, for O(hosts) that
    know O(secret). The unit ends by itself after O(limit_s).
  - With O(state=withdrawn) ends that. Offers of another run at the same time are left alone.
attributes:
  check_mode:
    description: Nothing is started or ended.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
  platform:
    description: Platforms on which the module works.
    platforms: posix
    support: full
options:
  state:
    description: What is to be.
    type: str
    choices: [look, offered, withdrawn]
    required: true
  models:
    description: The models in question, as the module M(enplace.inference.weights) takes them.
    type: list
    elements: dict
    default: []
  cache:
    description: The hub's cache folder on the host.
    type: path
    default: /var/lib/enplace/hub
  user:
    description: The owner of the cache, who runs the daemon.
    type: str
    default: enplace
  port:
    description: The daemon's port.
    type: int
    default: 8730
  run:
    description: A name for this run, letters and digits. Hosts log in by it.
    type: str
  secret:
    description: What hosts must know, letters and digits. It is kept in a file of mode 0600 and in no argument list.
    type: str
  hosts:
    description: Addresses, or names that the host can look up, of those who are let in.
    type: list
    elements: str
    default: []
  limit_s:
    description: Seconds after which the daemon is ended, whatever happens.
    type: int
    default: 21600
"""

EXAMPLES = r"""
- name: Offer a model
  enplace.inference.fleet:
    state: offered
    models: "{{ models }}"
    run: 3f9a0c51e2
    secret: "{{ secret }}"
    hosts: [192.0.2.11, 192.0.2.12]
"""

RETURN = r"""
whole:
  description: Repository and revision, joined by C(@), of the models that the host has whole.
  returned: with O(state=look) and O(state=offered)
  type: list
  elements: str
etags:
  description: For each of them, how the content of each file is called in the cache.
  returned: with O(state=offered)
  type: dict
failure:
  description: The error by field. The keys are what, where, expected, found and todo.
  returned: on failure
  type: dict
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.enplace.inference.plugins.module_utils import fleet, weights
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure


def act(asked: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Do what is asked; the module's result. Raises Failure and OSError."""
    source = fleet.Source(asked["cache"], asked["user"], asked["port"], limit_s=asked["limit_s"])
    if asked["state"] == "withdrawn":
        return {"changed": not check_mode and fleet.withdraw(source, asked["run"])}
    models = weights.parse_models(asked["models"])
    whole = [model for model in models if weights.is_remembered(source.cache, model)]
    result: dict[str, t.Any] = {"changed": False, "whole": [model.key for model in whole]}
    if asked["state"] == "offered":
        result["etags"] = {
            model.key: fleet.etags(
                weights.repository_path(source.cache, model.repo),
                weights.snapshot_path(source.cache, model),
                [file.path for file in model.files],
            )
            for model in whole
        }
        if whole and not check_mode:
            result["changed"] = fleet.offer(source, asked["run"], asked["secret"], asked["hosts"])
    return result


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["look", "offered", "withdrawn"], "required": True},
            "models": {"type": "list", "elements": "dict", "default": []},
            "cache": {"type": "path", "default": "/var/lib/enplace/hub"},
            "user": {"type": "str", "default": "enplace"},
            "port": {"type": "int", "default": 8730},
            "run": {"type": "str"},
            "secret": {"type": "str", "no_log": True},
            "hosts": {"type": "list", "elements": "str", "default": []},
            "limit_s": {"type": "int", "default": 21600},
        },
        required_if=[("state", "offered", ("run", "secret")), ("state", "withdrawn", ("run",))],
        supports_check_mode=True,
    )
    try:
        result = act(module.params, module.check_mode)
    except Failure as failure:
        module.fail_json(msg=str(failure), failure=failure.fields())
    except OSError as error:
        module.fail_json(msg="{}: {}".format(error.filename or module.params["cache"], error.strerror or error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
