#!/usr/bin/python
# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_facts
short_description: What a host is and holds, in one call and without changing it
version_added: "1.0.0"
author: The enplace authors (@enplace)
description:
  - Records as data what the plan for a host needs to know. It judges nothing.
  - Only what is asked for is looked at, except for the operating system, CPUs and memory.
  - Nothing is changed, in check mode as otherwise.
attributes:
  check_mode:
    description: The module only reads.
    support: full
  diff_mode:
    description: There is never a difference to show.
    support: none
  platform:
    description: Platforms on which the module works.
    platforms: posix
    support: full
options:
  python:
    description: Interpreter whose version is asked for.
    type: path
    default: /usr/bin/python3
  packages:
    description: Debian packages to look for.
    type: list
    elements: str
    default: []
  users:
    description: Users to look for.
    type: list
    elements: str
    default: []
  groups:
    description: Groups to look for.
    type: list
    elements: str
    default: []
  directories:
    description: Folders as they should be. Those that differ are returned.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: The folder.
        type: path
        required: true
      owner:
        description: Name of the owner.
        type: str
      group:
        description: Name of the group.
        type: str
      mode:
        description: Octal mode, in quotes.
        type: str
  files:
    description: Files as they should be. Those that differ are returned.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: The file.
        type: path
        required: true
      content:
        description: What is in it.
        type: str
        required: true
      mode:
        description: Octal mode, in quotes.
        type: str
        default: "0644"
  paths:
    description: Paths, existing or not, at which free space is asked for.
    type: list
    elements: path
    default: []
  ports:
    description: TCP ports whose listeners are asked for.
    type: list
    elements: int
    default: []
  environments:
    description: Environments to look at. Of a folder that is not named by a digest, the environments in it.
    type: list
    elements: path
    default: []
  units:
    description: Units to ask systemd about.
    type: list
    elements: str
    default: []
  reachable:
    description: URLs whose servers should take a TCP connection, directly or through the task's proxy variables.
    type: list
    elements: str
    default: []
  timeout_s:
    description: Seconds to wait for each of O(reachable). All are asked at the same time.
    type: int
    default: 3
"""

EXAMPLES = r"""
- name: Look at a host
  enplace.inference.host_facts:
    packages: [python3-venv, libnuma1]
    users: [enplace]
    directories:
      - path: /var/lib/enplace
        owner: enplace
        group: enplace
        mode: "0755"
    paths: [/opt/enplace, /var/lib/enplace]
    ports: [8000]
  register: look
"""

RETURN = r"""
arch:
  description: As C(uname -m) says.
  returned: success
  type: str
  sample: x86_64
kernel:
  description: Release of the running kernel.
  returned: success
  type: str
hostname:
  description: Name of the host.
  returned: success
  type: str
os:
  description: The keys are id, version, codename and name, from os-release.
  returned: success
  type: dict
  sample: {id: debian, version: "12", codename: bookworm, name: Debian GNU/Linux 12 (bookworm)}
cpus:
  description: CPUs that a process may use.
  returned: success
  type: int
memory:
  description: The keys are total_bytes, available_bytes and swap_free_bytes.
  returned: success
  type: dict
systemd:
  description: Whether systemd is the first process (running), and the state it gives itself (state).
  returned: success
  type: dict
  sample: {running: true, state: degraded}
python:
  description: The keys are path and version. The version is empty if the interpreter does not start.
  returned: success
  type: dict
  sample: {path: /usr/bin/python3, version: 3.11.2}
packages:
  description: The keys are installed (version by name), missing (names) and error.
  returned: success
  type: dict
users:
  description: By name, uid, gid, home and shell, or null.
  returned: success
  type: dict
groups:
  description: By name, gid and members, or null.
  returned: success
  type: dict
directories:
  description: Folders that differ, with path, expected and found (null if there is nothing).
  returned: success
  type: list
  elements: dict
files:
  description: Files that differ, with path, content and mode as asked for, and found in words.
  returned: success
  type: list
  elements: dict
paths:
  description: By path, exists, existing (the nearest parent that exists), mount, device, free_bytes and total_bytes.
  returned: success
  type: dict
listeners:
  description: Who listens on the ports, with port, address, pid, command and unit.
  returned: success
  type: list
  elements: dict
environments:
  description: Environments found, with path, sealed, state, digest, python and drift.
  returned: success
  type: list
  elements: dict
units:
  description: By name, the unit's properties as texts, or error.
  returned: success
  type: dict
reachable:
  description: For each URL, url, ok, via (the proxy) and error.
  returned: success
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.enplace.inference.plugins.module_utils import host_facts as facts


def main() -> None:
    strings = {"type": "list", "elements": "str", "default": []}
    paths = {"type": "list", "elements": "path", "default": []}
    module = AnsibleModule(
        argument_spec={
            "python": {"type": "path", "default": "/usr/bin/python3"},
            "packages": strings,
            "users": strings,
            "groups": strings,
            "directories": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "path", "required": True},
                    "owner": {"type": "str"},
                    "group": {"type": "str"},
                    "mode": {"type": "str"},
                },
            },
            "files": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "path", "required": True},
                    "content": {"type": "str", "required": True},
                    "mode": {"type": "str", "default": "0644"},
                },
            },
            "paths": paths,
            "ports": {"type": "list", "elements": "int", "default": []},
            "environments": paths,
            "units": strings,
            "reachable": strings,
            "timeout_s": {"type": "int", "default": 3},
        },
        supports_check_mode=True,
    )
    asked = module.params
    result = facts.system()
    try:
        result["directories"] = facts.directories(asked["directories"])
        result["files"] = facts.files(asked["files"])
    except ValueError as error:
        module.fail_json(msg=f"directories, files: mode must be octal digits in quotes: {error}")
    result["python"] = facts.python(asked["python"])
    result["packages"] = facts.packages(asked["packages"])
    result["users"] = facts.users(asked["users"])
    result["groups"] = facts.groups(asked["groups"])
    result["paths"] = facts.paths(asked["paths"])
    result["listeners"] = facts.listeners(asked["ports"])
    result["environments"] = facts.environments(asked["environments"])
    result["units"] = facts.units(asked["units"])
    result["reachable"] = facts.reachable(asked["reachable"], asked["timeout_s"])
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
