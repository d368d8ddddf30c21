#!/usr/bin/python
# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: resolve
short_description: Turn a recipe and a host into a plan, or say why it cannot work
version_added: "1.0.0"
description:
  - Reads the recipe that C(enplace_recipe) names, lints it, asks the host for its facts in one execution, and returns
    the plan of the release with the options of every role.
  - Fails with every problem at once (recipe, inventory, host) before anything is changed. The linter's errors are
    such problems, its warnings are shown as warnings.
  - A variant with fixes, with more than one node, or whose engine is built from sources is refused; this version does
    not apply those yet.
  - The host's inventory variables that it reads follow. Any other C(enplace_) variable is an error.
  - C(enplace_recipe), required - what the host serves, as C(<org>/<model>:<variant>).
  - C(enplace_recipe_folders), default V([]) - folders on the controller with recipes of your own, searched before
    those of the collection; a relative one begins at the current folder.
  - C(enplace_listen), default V(127.0.0.1) - the address the server binds to.
  - C(enplace_port), default V(8000) - the port the server binds to.
  - C(enplace_allow_unauthenticated), default V(false) - says that everybody who reaches an address beyond
    loopback may use the server. Without it such an address is refused.
  - C(enplace_allow_unpinned), default V(false) - says that weights and drafts without a commit are taken as the hub has
    them on the day of the run. The controller then asks the hub, with the token in its own C(HF_TOKEN) if there is one,
    and every run warns. Without it such a recipe is refused.
  - C(enplace_hub_endpoint), default V(https://huggingface.co) - where weights are downloaded from.
  - C(enplace_hub_token_file), optional - a file on the host, mode 0600, that holds the hub's token.
  - C(enplace_find_links), default V([]) - folders on the host, or URLs, with wheels that are tried besides the
    package index.
  - C(enplace_index_url), optional - the package index, where it is not the tools' own default.
  - C(enplace_ca_bundle), optional - a file on the host with the CA certificates that downloads trust, where TLS
    is inspected.
  - C(enplace_reports_dir), default V(reports) - a folder on the controller; a relative one begins at the current
    folder.
options:
  python:
    description: The host's Python that environments are made with.
    type: path
    default: /usr/bin/python3
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
    platforms: debian
author:
  - the enplace authors (@enplace)
"""

EXAMPLES = r"""
- name: Resolve the recipe of this host
  enplace.inference.resolve:
  register: resolved

- name: Say what would be served
  ansible.builtin.debug:
    msg: "{{ resolved.plan.recipe }} as {{ resolved.plan.unit }}"
"""

RETURN = r"""
plan:
  description: The plan of the release, with the options of every role.
  returned: success
  type: dict
facts:
  description: The host's facts, as the module host_facts gives them.
  returned: success
  type: dict
settings:
  description: The inventory variables read, with defaults filled in.
  returned: success
  type: dict
"""
