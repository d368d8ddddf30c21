# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The systemd unit of a recipe: from typed data to the unit's text. Pure; the only place that quotes for systemd.

Quoting rules: systemd.service(5) "Command lines", systemd.syntax(7), systemd.unit(5) "Specifiers".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# A character outside this set needs no quotes anywhere in a unit file.
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,+@")


def _quote(text: str, *, dollar: bool) -> str:
    if "\x00" in text:
        raise ValueError(f"a NUL byte cannot be passed to a program: {text!r}")
    # An invalid code point would only fail when the unit file is encoded, far from its cause.
    text.encode("utf-8")
    if text and all(char in _PLAIN for char in text):
        return text
    out = []
    for char in text:
        if char in '\\"':
            out.append("\\" + char)
        elif char == "%":
            out.append("%%")
        elif char == "$" and dollar:
            out.append("$$")
        elif char == "\n":
            out.append("\\n")
        elif char == "\t":
            out.append("\\t")
        elif ord(char) < 32 or ord(char) == 127:
            out.append(f"\\x{ord(char):02x}")
        else:
            out.append(char)
    return '"' + "".join(out) + '"'


def quote_argument(text: str) -> str:
    """One word of an ExecStart= line such that the program receives exactly `text`.

    Specifiers (%) and variables ($) are kept literal. Raises ValueError for a NUL byte, UnicodeEncodeError for text
    that is not valid Unicode.
    """
    return _quote(text, dollar=True)


def quote_environment(name: str, value: str) -> str:
    """One assignment of an Environment= line such that the program sees `value` literally; $ has no meaning there."""
    return _quote(f"{name}={value}", dollar=False)


def argv_of(arguments: Mapping[str, object]) -> list[str]:
    """Flags as an argument list, in the order given.

    true: `--flag`; false: `--no-flag`; a list: `--flag a b`; a mapping: its JSON text; anything else: its text.
    """
    argv: list[str] = []
    for name, value in arguments.items():
        if value is True:
            argv.append(f"--{name}")
        elif value is False:
            argv.append(f"--no-{name}")
        elif isinstance(value, Mapping):
            argv += [f"--{name}", json.dumps(value, separators=(",", ":"), ensure_ascii=False)]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            argv += [f"--{name}", *(str(item) for item in value)]
        else:
            argv += [f"--{name}", str(value)]
    return argv


@dataclass(frozen=True)
class Unit:
    """What one recipe's unit is made of. Paths are absolute; times in seconds."""

    description: str
    slug: str
    user: str
    argv: Sequence[str]
    ready_argv: Sequence[str]
    environment: Mapping[str, str]
    ready_timeout_s: int
    accelerator: str = "cpu"


def _command(argv: Sequence[str]) -> str:
    # One flag a line, its values beside it: people read the unit, and a changed flag is one changed line in a diff.
    lines = [quote_argument(argv[0])]
    for word in argv[1:]:
        if word.startswith("--"):
            lines.append(quote_argument(word))
        else:
            lines[-1] += " " + quote_argument(word)
    return " \\\n    ".join(lines)


def render(unit: Unit) -> str:
    """The unit file's text, ending with a newline. The same input gives the same bytes."""
    environment = "\n".join(f"Environment={quote_environment(k, v)}" for k, v in sorted(unit.environment.items()))
    # Only a host without an accelerator can lose its device nodes.
    devices = "PrivateDevices=yes\n" if unit.accelerator == "cpu" else ""
    return f"""\
# Written by enplace; a change is overwritten by the next run. Add your own settings as a drop-in.
[Unit]
Description={_text(unit.description)}
Wants=network-online.target
After=network-online.target
# A crash loop over a large model is an outage of the whole host: give up soon and say so.
StartLimitIntervalSec=1800
StartLimitBurst=3

[Service]
Type=exec
User={unit.user}
Group={unit.user}
WorkingDirectory=/var/lib/enplace
{environment}
ExecStart={_command(unit.argv)}
# Started means answering: a real completion, not an open port.
ExecStartPost={_command(unit.ready_argv)}
TimeoutStartSec={unit.ready_timeout_s + 30}
TimeoutStopSec=90
KillMode=mixed
KillSignal=SIGTERM
Restart=on-failure
RestartSec=15
# The engine exits 2 on arguments it refuses; a restart cannot help.
RestartPreventExitStatus=2
CacheDirectory=enplace/{unit.slug}
OOMScoreAdjust=500
OOMPolicy=stop
LimitNOFILE=65536
UMask=0027
SyslogIdentifier=enplace-{unit.slug}

NoNewPrivileges=yes
{devices}ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
LockPersonality=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
CapabilityBoundingSet=
AmbientCapabilities=
# Not set, and why: MemoryDenyWriteExecute (the engine compiles kernels at run time), ProcSubset (it reads /proc/cpuinfo
# and /proc/meminfo).

[Install]
WantedBy=multi-user.target
"""


def _text(text: str) -> str:
    return " ".join(text.split()).replace("%", "%%")
