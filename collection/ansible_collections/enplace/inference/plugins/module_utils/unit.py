# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The systemd units of a recipe: from typed data to their text. Pure; the only place that quotes for systemd.

Quoting rules: systemd.service(5) "Command lines", systemd.syntax(7), systemd.unit(5) "Specifiers".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Name of the credential that holds the key of the server's interface.
CREDENTIAL = "api-key"
#: What the engine imports to ask for the key wherever it does not by itself, from the file that starts it.
GUARD = "launch.Guard"
#: Seconds for one token of a living engine. A long prompt that is being read counts as life, too.
ALIVE_DEADLINE_S = 120

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
    """What one recipe's unit is made of. Paths are absolute; times in seconds.

    Attributes:
        conflicts: names of the units that cannot run beside this one.
        api_key_file: on the host; empty for a server without a key.
        cards: module numbers of the cards it uses; empty: whatever the engine takes.
        alive_argv: asks once whether the engine is alive; the unit's name and the deadline are added.
        launch_argv: what the engine's argv is put behind where there is a key.
    """

    description: str
    slug: str
    user: str
    argv: Sequence[str]
    ready_argv: Sequence[str]
    environment: Mapping[str, str]
    ready_timeout_s: int
    accelerator: str = "cpu"
    conflicts: Sequence[str] = ()
    api_key_file: str = ""
    cards: Sequence[int] = ()
    alive_argv: Sequence[str] = ()
    launch_argv: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The unit's own name."""
        return f"enplace-{self.slug}.service"

    @property
    def alive_deadline_s(self) -> int:
        """Seconds in which a living engine generates one token, or anything else."""
        return alive_deadline_s(self.accelerator, self.ready_timeout_s)


def alive_deadline_s(accelerator: str, ready_timeout_s: int) -> int:
    """Seconds after which an engine that did nothing at all counts as dead.

    On Gaudi the first request of a new shape is compiled for, which may take as long as a start does.
    """
    return max(ALIVE_DEADLINE_S, ready_timeout_s) if accelerator == "gaudi2" else ALIVE_DEADLINE_S


def _command(argv: Sequence[str]) -> str:
    # One flag a line, its values beside it: people read the unit, and a changed flag is one changed line in a diff.
    lines = [quote_argument(argv[0])]
    for word in argv[1:]:
        if word.startswith("--"):
            lines.append(quote_argument(word))
        else:
            lines[-1] += " " + quote_argument(word)
    return " \\\n    ".join(lines)


# What an accelerator needs beyond the sandbox, and what the sandbox may be where there is none.
_DEVICES = {
    "cpu": """\
PrivateDevices=yes
PrivateUsers=yes
# @resources stays: ZeroMQ sets the scheduling of its threads, and aborts where it may not.
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
""",
    "gb10": """\
# PrivateDevices left out: it hides the card. The list is made at the unit's start: load the modules before.
DevicePolicy=closed
DeviceAllow=char-nvidia* rw
# SupplementaryGroups: who may use the device files, where that is not everybody.
SupplementaryGroups=video render
# PrivateUsers left out: it takes these groups away.
# @debug, @privileged and @resources stay: the driver's libraries are closed, no list of their calls is known.
SystemCallFilter=~@clock @cpu-emulation @module @mount @obsolete @raw-io @reboot @swap
# Buffers that the card reads directly are locked in memory.
LimitMEMLOCK=infinity
""",
    "gaudi2": """\
# PrivateDevices left out: it hides the cards. The list is made at the unit's start: load the modules before.
# All cards, not its own alone: which file belongs to which module is decided anew at each boot.
DevicePolicy=closed
DeviceAllow=char-accel rw
DeviceAllow=char-habanalabs* rw
# The cards talk to each other through their own network ports.
DeviceAllow=char-infiniband_verbs rw
# SupplementaryGroups: who may use the device files, where that is not everybody.
SupplementaryGroups=render
# PrivateUsers left out: it takes this group away.
# @debug, @privileged and @resources stay: the driver's libraries are closed, no list of their calls is known.
SystemCallFilter=~@clock @cpu-emulation @module @mount @obsolete @raw-io @reboot @swap
# Buffers that the cards read directly are locked in memory.
LimitMEMLOCK=infinity
""",
}


def render(unit: Unit) -> str:
    """The unit file's text, ending with a newline. The same input gives the same bytes.

    Raises ValueError for a key without launch_argv, and for an accelerator that is not known.
    """
    if unit.accelerator not in _DEVICES:
        raise ValueError(f"no unit is known for the accelerator {unit.accelerator!r}")
    if unit.api_key_file and not unit.launch_argv:
        raise ValueError("a key needs a program that hands it over: launch_argv")
    argv = [*unit.launch_argv, *unit.argv, "--middleware", GUARD] if unit.api_key_file else unit.argv
    gb10 = unit.accelerator == "gb10"
    return f"""\
{_HEAD}
[Unit]
Description={_text(unit.description)}
Wants=network-online.target
After=network-online.target{" nvidia-persistenced.service" if gb10 else ""}
{_conflicts(unit)}\
# A crash loop over a large model is an outage of the whole host: give up soon. Three slow starts fit in.
StartLimitIntervalSec={max(1800, 4 * (unit.ready_timeout_s + 120))}
StartLimitBurst=3

[Service]
Type=exec
User={unit.user}
Group={unit.user}
# Not the cache: a folder of the name of a package, and the cache has one, would be imported in its place.
WorkingDirectory=/var/lib/enplace
CacheDirectory=enplace/{unit.slug}
CacheDirectoryMode=0750
UMask=0077
{_credential(unit)}ExecStart={_command(argv)}
# Started means answering: a real completion, not an open port.
ExecStartPost={_command(unit.ready_argv)}
TimeoutStartSec={unit.ready_timeout_s + 30}
Restart=on-failure
RestartSec=15
# The engine exits 2 on arguments it refuses; a restart cannot help.
RestartPreventExitStatus=2
# SIGTERM to the server alone, which ends its workers in order; what is left after that is killed, all of it.
KillMode=mixed
KillSignal=SIGTERM
TimeoutStopSec=90
SendSIGKILL=yes
FinalKillSignal=SIGKILL
# When memory runs out the kernel takes the engine, whole, and before anything that a person needs to log in.
OOMScoreAdjust={800 if gb10 else 500}
OOMPolicy=kill
# MemoryMax left out: a cgroup does not see what a card takes of shared memory, and counts the cache of files instead.
LimitNOFILE=65536
# A core dump would hold the weights, what people asked, and the key.
LimitCORE=0
StandardOutput=journal
StandardError=journal
SyslogIdentifier=enplace-{unit.slug}

{_DEVICES[unit.accelerator]}{_SANDBOX}\
# Shared memory of its own: a killed engine leaves none behind; units of one user do not see each other's.
TemporaryFileSystem=/dev/shm:mode=1777,nosuid,nodev
ProtectProc=invisible
# ProcSubset left out: the engine reads /proc/cpuinfo and /proc/meminfo.
# AF_INET, AF_INET6: it serves. AF_UNIX: its processes talk to each other. AF_NETLINK: it looks up the host's addresses.
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
# IPAddressDeny and PrivateNetwork left out: it serves, and its processes find each other by the host's own address.
# MemoryDenyWriteExecute left out: kernels are compiled into memory at run time; the first completion fails with it.
# NoExecPaths left out: what is compiled at run time lies in the cache and is loaded from there.
# RemoveIPC left out: it removes what the other units of the same user share, too.
# RootDirectory left out: compilers, drivers and certificates are the host's.

[Install]
WantedBy=multi-user.target
"""


_HEAD = "# Written by enplace; a change is overwritten by the next run. Add your own settings as a drop-in."

# What holds for the engine and for the program that asks whether it is alive.
_SANDBOX = """\
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
# This adds one DeviceAllow, for reading the hardware's clock.
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
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
"""


def _conflicts(unit: Unit) -> str:
    others = sorted(set(unit.conflicts) - {unit.name})
    if not others:
        return ""
    # One of each pair waits for the other's end; if both did, systemd would find a circle and give up.
    first = [other for other in others if other < unit.name]
    after = f"After={' '.join(first)}\n" if first else ""
    return f"# They use the same cards or the same memory.\nConflicts={' '.join(others)}\n{after}"


def _credential(unit: Unit) -> str:
    if not unit.api_key_file:
        return ""
    return f"""\
# The key comes in a file that only the first process sees, which leaves it in the folder of this run for those who ask.
LoadCredential={CREDENTIAL}:{_path(unit.api_key_file)}
RuntimeDirectory=enplace/{unit.slug}
RuntimeDirectoryMode=0700
"""


def render_environment(unit: Unit) -> str:
    """The text of the drop-in that holds the unit's variables, in the order of their names."""
    cards = {"HABANA_VISIBLE_MODULES": ",".join(map(str, unit.cards))} if unit.accelerator == "gaudi2" else {}
    variables = {**(cards if unit.cards else {}), **unit.environment}
    lines = [f"Environment={quote_environment(name, value)}" for name, value in sorted(variables.items())]
    return "\n".join([_HEAD, "[Service]", *lines]) + "\n"


def render_whole(unit: Unit) -> str:
    """The unit with its variables in one text, which is a unit, too: for people, and for tests."""
    return f"{render(unit)}\n{render_environment(unit)}"


def render_alive(unit: Unit) -> tuple[str, str]:
    """The texts of the service that asks whether the engine is alive, and of its timer.

    The question is asked without privileges. Only systemctl, whose arguments are fixed here, runs with them.
    """
    argv = [*unit.alive_argv, "--unit", unit.name, "--deadline", str(unit.alive_deadline_s)]
    if unit.api_key_file:
        argv += ["--key-file", f"/run/enplace/{unit.slug}/{CREDENTIAL}"]
    service = f"""\
{_HEAD}
[Unit]
Description=Is {unit.name} alive?
# While a release is being activated the activation alone judges.
ConditionPathExists=!/run/systemd/system/{unit.name}

[Service]
Type=oneshot
User={unit.user}
Group={unit.user}
# Exit status 0 of each lets the next run; 1 to 254 end it here, and are no failure.
ExecCondition=+/usr/bin/systemctl is-active --quiet {unit.name}
ExecCondition={_command(argv)}
# The second of them found the engine dead, and said so in the journal.
ExecStart=+/usr/bin/systemctl --no-block try-restart {unit.name}
TimeoutStartSec={unit.alive_deadline_s + 60}
# What it found the time before.
RuntimeDirectory=enplace/{unit.slug}-alive
RuntimeDirectoryMode=0700
RuntimeDirectoryPreserve=yes
UMask=0077
StandardOutput=journal
StandardError=journal
SyslogIdentifier=enplace-{unit.slug}-alive
# Not a line a minute in the journal about an engine that is well.
LogLevelMax=notice
LimitCORE=0
OOMScoreAdjust=-100

PrivateDevices=yes
PrivateUsers=yes
{_SANDBOX}SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
ProtectProc=invisible
ProcSubset=pid
MemoryDenyWriteExecute=yes
# AF_INET, AF_INET6: it asks. AF_UNIX: systemctl talks to systemd.
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
# IPAddressDeny and PrivateNetwork left out: the server may listen on an address of the host that is not loopback.
# RemoveIPC left out: it removes what the engine of the same user shares among its processes.
# RootDirectory left out: the interpreter is the host's.
"""
    timer = f"""\
{_HEAD}
[Unit]
Description=Ask every minute whether {unit.name} is alive

[Timer]
OnCalendar=minutely
RandomizedDelaySec=10
AccuracySec=1
Persistent=no
Unit=enplace-{unit.slug}-alive.service

[Install]
WantedBy=timers.target
"""
    return service, timer


def _text(text: str) -> str:
    return " ".join(text.split()).replace("%", "%%")


def _path(text: str) -> str:
    # LoadCredential= takes everything behind the first colon, and knows no quotes.
    if not text.startswith("/") or any(char.isspace() or ord(char) < 32 for char in text):
        raise ValueError(f"this path cannot be a credential's source: {text!r}")
    return text.replace("%", "%%")
