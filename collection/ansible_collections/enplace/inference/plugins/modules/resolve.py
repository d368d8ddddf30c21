#!/usr/bin/python
# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: resolve
short_description: Turn the recipes of a host into a plan, say why it cannot work, and what differs from it
version_added: "1.0.0"
description:
  - Reads the recipes that C(enplace_recipes) names, lints them, asks the host for its facts, makes the plan with the
    options of every role, and compares the host with it (M(enplace.inference.state)). Two executions on the host.
  - Fails with every problem at once (recipes, inventory, host) before anything is changed. The linter's errors are
    such problems, its warnings are shown as warnings.
  - A variant with fixes, with more than one node, or whose engine is built from sources is refused; this version does
    not apply those yet.
  - The host's inventory variables that it reads follow. Any other C(enplace_) variable is an error.
  - C(enplace_recipes), required - what the host serves, a list. An entry is V(<org>/<model>:<variant>), or a mapping
    with C(recipe) and, where it differs, C(port), C(listen), C(api_key_file); C(cards), the module numbers of the
    Gaudi cards it uses (default is from 0 on, as many as the recipe says); and C(standby). A standby server is
    verified once and then neither enabled nor left running, and does not run beside those it shares cards with (beside
    no other one, on hosts without cards of that kind); it is for starting by hand.
  - C(enplace_recipe_folders), default V([]) - folders on the controller with recipes of your own, searched before
    those of the collection; a relative one begins at the current folder.
  - C(enplace_listen), default V(127.0.0.1) - the address a server binds to, where its entry names none.
  - C(enplace_port), default V(8000) - the port a server binds to, where its entry names none.
  - C(enplace_api_key_file), optional - a file on the host, root's and of mode 0600, with the key that a server
    demands, where its entry names none. It reaches the server as a systemd credential, and no command line.
  - C(enplace_allow_unauthenticated), default V(false) - says that everybody who reaches an address beyond
    loopback may use a server without a key. Without it such an address is refused.
  - C(enplace_allow_unpinned), default V(false) - says that weights and drafts without a commit are taken as the hub has
    them on the day of the run. The controller then asks the hub, with the token in its own C(HF_TOKEN) if there is one,
    and every run warns. Without it such a recipe is refused.
  - C(enplace_retry), default V(false) - activate a release that failed before, or that was rolled back.
  - C(enplace_keep), default V(3) - how many releases of a recipe are kept on the host, the one that serves included.
  - C(enplace_deep), default V(false) - hash every file of environments, weights and releases.
  - C(enplace_hub_endpoint), default V(https://huggingface.co) - where weights are downloaded from.
  - C(enplace_hub_token_file), optional - a file on the host, mode 0600, that holds the hub's token.
  - C(enplace_weights_source), default V(hub) - V(hub) downloads from C(enplace_hub_endpoint); V(fleet) lets one host of
    the run do that, and the others take from it; V(offline) takes what is there, and asks nobody.
  - C(enplace_fleet_port), default V(8730) - the port that this one host gives weights away at, for as long as the run
    fetches them.
  - C(enplace_fleet_address), optional - the address that the other hosts reach this one at, where it is not
    C(ansible_host) or the inventory's name.
  - C(enplace_find_links), default V([]) - folders on the host, or URLs, with wheels that are tried besides the
    package index.
  - C(enplace_index_url), optional - the package index, where it is not the tools' own default.
  - C(enplace_ca_bundle), optional - a file on the host with the CA certificates that downloads trust, where TLS
    is inspected.
  - C(enplace_reports_dir), default V(reports) - a folder on the controller; a relative one begins at the current
    folder.
  - C(enplace_status_fail), default V(true) - whether the playbook status fails where something differs.
  - C(enplace_preflight_fail), default V(true) - whether the playbook preflight fails where there is a trap.
  - C(enplace_teardown_weights), default V(false) - whether the playbook teardown removes weights that nothing else on
    the host needs.
  - C(enplace_verify_suite), default V(full) - what the playbook verify asks of servers - V(gate), V(full), V(bench) or
    V(soak).
  - C(enplace_verify_hours), optional - how long the suite V(soak) goes on, where the recipe's own C(soak) is not meant.
  - C(enplace_verify_without), default V([]) - names of checks that the playbook verify leaves out.
  - C(enplace_verify_reboot), default V(false) - whether the playbook verify starts the host anew first, and waits for
    the servers to come back by themselves.
  - C(enplace_verify_standby), default V(false) - whether the playbook verify also starts the standby servers, one after
    the other and each in the place of those that serve, which are started again in the end.
  - C(enplace_verify_url), optional - a server that somebody else made. The playbook verify then asks it, from the
    controller, and no host - with the checks of the one recipe of C(enplace_recipes), or with C(enplace_verify_checks).
  - C(enplace_verify_model), optional - the name it serves the model under, where it is not the recipe's.
  - C(enplace_verify_version), optional - the engine's version, where it is not the recipe's.
  - C(enplace_verify_checks), optional - a list of checks, as in a recipe.
  - C(enplace_verify_api_key_file), optional - a file on the controller, mode 0600, with the key it wants.
options:
  show:
    description: Print the state of the host. Damage that O(show=false) fails for is then only shown.
    type: bool
    default: false
  verify:
    description: Also say what the playbook verify asks of which server.
    type: bool
    default: false
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
- name: Resolve the recipes of this host
  enplace.inference.resolve:
  register: resolved

- name: Say what would be served
  ansible.builtin.debug:
    msg: "{{ resolved.plan.releases | map(attribute='recipe') | join(', ') }}"
"""

RETURN = r"""
plan:
  description: The plan of the host, with the options of every role.
  returned: success, unless C(enplace_verify_url) is set
  type: dict
state:
  description: How the host differs from it, as the module M(enplace.inference.state) says.
  returned: success, unless C(enplace_verify_url) is set
  type: dict
settings:
  description: The inventory variables read, with defaults filled in.
  returned: success
  type: dict
servers:
  description: What to verify, with the options of the role verify.
  returned: with O(verify)
  type: list
  elements: dict
holder:
  description: Who runs this, and where, for those who find the host locked.
  returned: success
  type: str
  sample: ada@controller pid 4711
"""
