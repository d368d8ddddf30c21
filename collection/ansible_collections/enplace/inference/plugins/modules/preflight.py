#!/usr/bin/python
# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: preflight
short_description: Put a host to every trap that is known of accelerator hosts
version_added: "1.0.0"
description:
  - Asks the host for its facts (M(enplace.inference.accelerator_facts) and M(enplace.inference.host_facts), two
    executions), judges them by every trap, and shows what was found, with what to do about it.
  - What is wanted of the host is what the recipes in C(enplace_recipes) say of it. A host without recipes is judged by
    what is wrong whatever it serves.
  - A trap that is found fails nothing here; the playbook preflight fails where RV(counts) has one.
  - The inventory variables that it reads are those of M(enplace.inference.resolve).
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
- name: Look for what is known to go wrong
  enplace.inference.preflight:
  register: preflight

- name: Say how many were found
  ansible.builtin.debug:
    msg: "{{ preflight.counts }}"
"""

RETURN = r"""
counts:
  description: How many traps ended as trap, warn, unknown, ok and not applicable.
  returned: success
  type: dict
  sample: {trap: 1, warn: 2, unknown: 0, ok: 44, not applicable: 26}
document:
  description: The facts, what is wanted of the host, and the findings, as C(enplace doctor --facts) reads them.
  returned: success
  type: dict
settings:
  description: The inventory variables read, with defaults filled in.
  returned: success
  type: dict
"""
