#!/usr/bin/python
# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: accelerator_facts
short_description: The accelerators of a host, their drivers, and what decides whether they work
version_added: "1.0.0"
author: The enplace authors (@enplace)
description:
  - Records as data what a host has of NVIDIA GPUs and Intel Gaudi cards, from the PCI bus to the packages, and what of
    the host decides whether they work (kernels, Secure Boot, apt, memory, network, clock, compilers, containers).
  - It judges nothing; the playbook preflight does.
  - Every program is asked in the locale C.UTF-8 and with a deadline. One that is missing, fails or says N/A fails
    nothing; RV(sources) tells how each ended, and what nobody knows is null or absent.
  - Serial numbers, addresses, and users and passwords of URLs are left out, so that the facts can be sent to others.
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
  now:
    description: The time as another machine has it, in seconds since 1970, to compare the host's clock with.
    type: float
  environments:
    description: Folders of Python environments whose torch is looked at, besides the usual places.
    type: list
    elements: path
    default: []
  timeout_s:
    description: Seconds to wait for each program. All are asked at the same time.
    type: float
    default: 10
"""

EXAMPLES = r"""
- name: Look at the accelerators of a host
  enplace.inference.accelerator_facts:
  register: look

- name: Say where the counts of cards differ
  ansible.builtin.debug:
    msg: "{{ look.counts }}"
"""

RETURN = r"""
sources:
  description: By source, whether it was found, its return code (null for a file), and what went wrong.
  returned: success
  type: dict
  sample: {nvidia-smi: {found: true, rc: 0, error: ""}}
pci:
  description: The accelerators on the bus, with address, vendor, device, class and driver.
  returned: success
  type: list
  elements: dict
nodes:
  description: Device nodes by vendor, and those of RDMA.
  returned: success
  type: dict
cards:
  description: The rows of nvidia-smi and hl-smi. A value is null where the tool says N/A.
  returned: success
  type: dict
counts:
  description: By vendor, the cards on the bus (pci), their device nodes (nodes), the tool's rows (tool, null where it
    did not answer), and the names of those that differ from the bus (differs).
  returned: success
  type: dict
  sample: {nvidia: {pci: 1, nodes: 1, tool: 1, differs: []}}
accel:
  description: Of each Gaudi card, what its driver says in sysfs, with status and firmware.
  returned: success
  type: list
  elements: dict
os:
  description: The keys are id, version, codename and name, from os-release.
  returned: success
  type: dict
arch:
  description: As C(uname -m) says.
  returned: success
  type: str
dgx:
  description: Name and software version of an NVIDIA DGX.
  returned: success
  type: dict
modules:
  description: The loaded kernel modules that matter, with their versions.
  returned: success
  type: dict
driver:
  description: The loaded NVIDIA driver as it names itself - nvidia (version) and open.
  returned: success
  type: dict
kernel:
  description: The running release, the installed kernels with their headers and driver modules, and the options it was
    started with.
  returned: success
  type: dict
dkms:
  description: What DKMS has for which kernel.
  returned: success
  type: list
  elements: dict
packages:
  description: Installed packages that matter (version by name), those on hold, those that are half installed.
  returned: success
  type: dict
apt:
  description: Sources and pins of the vendors, candidates, unattended-upgrades, locks that somebody holds.
  returned: success
  type: dict
secure_boot:
  description: Whether it is on, how that is known, whether the host's own key is enrolled.
  returned: success
  type: dict
boot:
  description: Room in C(/boot), the largest initrd there, packages that want a reboot.
  returned: success
  type: dict
memory:
  description: Memory, swap and huge pages.
  returned: success
  type: dict
limits:
  description: The limits that systemd gives by default.
  returned: success
  type: dict
units:
  description: By name, the properties of units that matter.
  returned: success
  type: dict
earlyoom:
  description: The arguments of earlyoom.
  returned: success
  type: str
network:
  description: Network interfaces with a device, with vendor, driver, up (somebody brought it up), state and MTU.
  returned: success
  type: list
  elements: dict
iommu:
  description: IOMMUs, and how they treat each accelerator.
  returned: success
  type: dict
clock:
  description: Whether the clock is synchronized, and how far it is off.
  returned: success
  type: dict
locale:
  description: The locale of the system.
  returned: success
  type: dict
proxy:
  description: The proxies of apt and of the system.
  returned: success
  type: dict
cuda:
  description: CUDA toolkits, the default one, and whether it has nvcc and ptxas.
  returned: success
  type: dict
build:
  description: Tools, Pythons with their headers, and the version of python3.
  returned: success
  type: dict
containers:
  description: Docker's runtimes and the files of CDI.
  returned: success
  type: dict
torch:
  description: Each place that has torch, with its version and that of Habana's plug-in.
  returned: success
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.enplace.inference.plugins.module_utils import accelerators


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "now": {"type": "float"},
            "environments": {"type": "list", "elements": "path", "default": []},
            "timeout_s": {"type": "float", "default": 10.0},
        },
        supports_check_mode=True,
    )
    asked = module.params
    look = accelerators.Look(timeout_s=asked["timeout_s"])
    module.exit_json(changed=False, **accelerators.facts(look, asked["now"], asked["environments"]))


if __name__ == "__main__":
    main()
