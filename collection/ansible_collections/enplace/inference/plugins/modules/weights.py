#!/usr/bin/python
# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: weights
short_description: Model repositories at a pinned revision, every file checked against a manifest
version_added: "1.0.0"
author: The enplace authors (@enplace)
description:
  - Compares the files of model repositories in the hub's standard cache with their manifests, by size and SHA-256, and
    downloads what is missing with the hub's own client (C(hf download)).
  - Files that were verified are remembered in C(enplace-verified) in the cache, and not hashed again as long as size,
    time of modification and inode are the same.
  - Before the first byte the hub is asked, once for each repository, whether it will give the files to this token, and
    the room on the disk is compared with what is missing.
  - Seen from a play, the download is done by a process of its own on the host, which goes on to its end if the
    controller dies. The play shows how far it is. A second run waits for it, and names it.
  - A client that gets no byte for O(stall_s) seconds is killed and started again. Whole files are kept; hf 2.4 begins
    unfinished ones anew in each process, whatever a killed one had of them.
  - A file that is not as the manifest says is an error and is removed, unless the manifest is what is wrong. A snapshot
    is never reported whole unless all of its files are.
attributes:
  check_mode:
    description:
      - Lists what would be downloaded, and asks the hub whether it would give it. Files not verified before are hashed.
    support: full
  action:
    description: Runs on the controller, where it shows how far a download is.
    support: full
  diff_mode:
    description: Lists the files that are there, before and after.
    support: full
  platform:
    description: Platforms on which the module works.
    platforms: posix
    support: full
options:
  models:
    description: The repositories.
    type: list
    elements: dict
    required: true
    suboptions:
      repo:
        description: Organisation and name.
        type: str
        required: true
      revision:
        description: The commit, 40 hexadecimal digits.
        type: str
        required: true
      files:
        description: The manifest, with every file that is wanted.
        type: list
        elements: dict
        required: true
        suboptions:
          path:
            description: Path in the repository.
            type: str
            required: true
          bytes:
            description: Size in bytes.
            type: int
            required: true
          sha256:
            description: SHA-256 of the content, 64 hexadecimal digits.
            type: str
            required: true
  cache:
    description: The hub's cache folder on the host.
    type: path
    default: /var/lib/enplace/hub
  hf:
    description: The hub's client on the host.
    type: path
    required: true
  endpoint:
    description: Address of the hub. Default is the client's own.
    type: str
  token_file:
    description:
      - A file on the host that holds the hub's token, mode 0600 or stricter. It reaches the client by its environment
        only.
    type: path
  user:
    description: The user who downloads and owns the files. Default is the user the module runs as.
    type: str
  ca_bundle:
    description: Certificates to trust, a PEM file on the host.
    type: path
  deep:
    description: Hash every file, whatever is remembered of it.
    type: bool
    default: false
  timeout_s:
    description: Seconds after which the download of one repository is stopped. The next run keeps whole files.
    type: int
    default: 86400
  offline:
    description:
      - Ask no network for anything. Weights that are not whole are then an error, which names them and their place.
    type: bool
    default: false
  stall_s:
    description: Seconds without a byte after which the client is started again.
    type: int
    default: 120
  restarts:
    description: How often at most. From the second time on the client does without Xet, if no file exceeds 50 GB.
    type: int
    default: 3
  offers:
    description:
      - What neighbours offer (see M(enplace.inference.fleet)). The hub is asked only for what they cannot give.
    type: list
    elements: dict
    default: []
    suboptions:
      model:
        description: Repository and revision, joined by C(@).
        type: str
        required: true
      name:
        description: The neighbour, for messages.
        type: str
        required: true
      address:
        description: Its address.
        type: str
        required: true
      port:
        description: The port of its daemon.
        type: int
        required: true
      run:
        description: The name under which the neighbour lets this host in.
        type: str
        required: true
      etags:
        description: How the content of each file is called in the neighbour's cache, by path.
        type: dict
        required: true
      reason:
        description: Why there is nothing, for the warning.
        type: str
        default: ""
  secret:
    description: What the neighbours want to hear. It reaches rsync by its environment only.
    type: str
  holder:
    description: On whose behalf this is done; who finds the cache locked reads it.
    type: str
    default: ""
  background:
    description:
      - Where something is to be done, begin it in a process of its own and return the name of the file that tells how
        far it is. The action plugin sets this.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Fetch a model
  enplace.inference.weights:
    hf: /opt/enplace/tools/0a1b2c3d4e5f/bin/hf
    user: enplace
    models:
      - repo: enplace/smoke
        revision: 3c1d0a9e7b52f0a6c4f35b1c2c1b7b9d6f0e8a7d
        files:
          - path: config.json
            bytes: 1256
            sha256: f0f885296919b3b7818c499f4baab5c21df9745f82ae9991f7572d91b1c02899
"""

RETURN = r"""
models:
  description: The repositories, in the order of O(models).
  returned: success
  type: list
  elements: dict
  contains:
    repo:
      description: Organisation and name.
      type: str
    revision:
      description: The commit.
      type: str
    snapshot:
      description: The folder with the files at this revision.
      type: str
    files:
      description: Number of files in the manifest.
      type: int
    bytes:
      description: Size of all of them.
      type: int
    missing:
      description: Files that were (in check mode would be) downloaded, with path and bytes.
      type: list
      elements: dict
    downloaded_bytes:
      description: Bytes that were added to the cache.
      type: int
    extra:
      description: Files of the snapshot that are not in the manifest.
      type: list
      elements: str
downloaded_bytes:
  description: Bytes that were added to the cache, for all models.
  returned: success
  type: int
missing_bytes:
  description: Size of the files that were not whole when the module came.
  returned: success
  type: int
job:
  description: The file that tells how far the work is, where it was begun in the background.
  returned: with O(background), where something is to be done
  type: str
failure:
  description: The error by field. The keys are what, where, expected, found and todo.
  returned: on failure
  type: dict
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.enplace.inference.plugins.module_utils import job, weights
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure
from ansible_collections.enplace.inference.plugins.module_utils.fleet import Offer


def diff_of(models: t.Sequence[weights.Model], result: dict[str, t.Any]) -> list[dict[str, str]]:
    """One entry for each model that changes: its files before and after, one line each."""
    diffs = []
    for model, entry in zip(models, result["models"]):
        missing = {item["path"] for item in entry["missing"]}
        if missing:
            lines = {file.path: f"{file.sha256} {file.size} {file.path}\n" for file in model.files}
            diffs.append(
                {
                    "before_header": entry["snapshot"],
                    "after_header": entry["snapshot"],
                    "before": "".join(line for path, line in lines.items() if path not in missing),
                    "after": "".join(lines.values()),
                }
            )
    return diffs


def offer_of(asked: dict[str, t.Any], secret: str) -> Offer:
    return Offer(asked["name"], asked["address"], asked["port"], asked["run"], secret, asked["etags"], asked["reason"])


def main() -> None:
    file_spec = {
        "path": {"type": "str", "required": True},
        "bytes": {"type": "int", "required": True},
        "sha256": {"type": "str", "required": True},
    }
    model_spec = {
        "repo": {"type": "str", "required": True},
        "revision": {"type": "str", "required": True},
        "files": {"type": "list", "elements": "dict", "required": True, "options": file_spec},
    }
    offer_spec = {
        "model": {"type": "str", "required": True},
        "name": {"type": "str", "required": True},
        "address": {"type": "str", "required": True},
        "port": {"type": "int", "required": True},
        "run": {"type": "str", "required": True},
        "etags": {"type": "dict", "required": True},
        "reason": {"type": "str", "default": ""},
    }
    module = AnsibleModule(
        argument_spec={
            "models": {"type": "list", "elements": "dict", "required": True, "options": model_spec},
            "cache": {"type": "path", "default": "/var/lib/enplace/hub"},
            "hf": {"type": "path", "required": True},
            "endpoint": {"type": "str"},
            "token_file": {"type": "path", "no_log": False},
            "user": {"type": "str"},
            "ca_bundle": {"type": "path"},
            "deep": {"type": "bool", "default": False},
            "timeout_s": {"type": "int", "default": 86400},
            "offline": {"type": "bool", "default": False},
            "stall_s": {"type": "int", "default": 120},
            "restarts": {"type": "int", "default": 3},
            "offers": {"type": "list", "elements": "dict", "default": [], "options": offer_spec},
            "secret": {"type": "str", "no_log": True},
            "holder": {"type": "str", "default": ""},
            "background": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    asked = module.params
    request = weights.Request(
        cache=asked["cache"],
        hf=asked["hf"],
        endpoint=asked["endpoint"] or "",
        token_file=asked["token_file"] or "",
        user=asked["user"] or "",
        ca_bundle=asked["ca_bundle"] or "",
        timeout_s=asked["timeout_s"],
        offline=asked["offline"],
        offers={offer["model"]: offer_of(offer, asked["secret"] or "") for offer in asked["offers"]},
        holder=asked["holder"],
        stall_s=asked["stall_s"],
        restarts=asked["restarts"],
    )
    try:
        models = weights.parse_models(asked["models"])

        def work(progress: job.Progress) -> dict[str, t.Any]:
            done = weights.ensure(request, models, asked["deep"], module.check_mode, progress)
            return {**done, "diff": diff_of(models, done)}

        idle = not asked["deep"] and all(weights.is_remembered(request.cache, model) for model in models)
        if asked["background"] and not module.check_mode and not idle:
            module.exit_json(changed=False, job=job.start(work))
        result = work(job.Progress())
    except Failure as failure:
        module.fail_json(msg=str(failure), failure=failure.fields())
    except OSError as error:
        module.fail_json(msg="{}: {}".format(error.filename or asked["cache"], error.strerror or error))
    for warning in result.pop("warnings"):
        module.warn(warning)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
