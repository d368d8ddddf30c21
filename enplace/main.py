# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Entry point of the command: arguments, and which module does what. A module is imported only when it is asked for.

Exit status: 0 all is well; 1 findings of severity error, or something that enplace refuses; 2 wrong usage, or input
that cannot be read.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence

from . import __version__

FOUND = 1
UNREADABLE = 2

REFERENCE = "<org>/<model>[:<variant>], or the path of a recipe.yaml"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="enplace",
        description="Recipes of inference servers: check them, read them, plan them, pin them.",
        epilog="A recipe is looked for in ./recipes, then among those that ship.\n"
        "`enplace COMMAND --help` has examples.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"enplace {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(name: str, summary: str, *examples: str) -> argparse.ArgumentParser:
        epilog = "examples:\n" + "\n".join(f"  {example}" for example in examples)
        made = commands.add_parser(
            name, help=summary, description=summary, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if name in ("lock", "report", "doctor"):
            return made
        made.add_argument(
            "--recipes",
            metavar="FOLDER",
            action="append",
            default=[],
            help="look for recipes in this folder first; may be given several times",
        )
        return made

    lint = add(
        "lint",
        "say everything that is wrong with recipes",
        "enplace lint                                   every recipe in ./recipes, else those that ship",
        "enplace lint Qwen/Qwen3-Coder-Next             one recipe",
        "enplace lint my-recipes                        every recipe below a folder",
        "enplace lint --format sarif > enplace.sarif    for a code host",
        "enplace lint --rules                           every rule with its reason",
    )
    lint.add_argument("targets", nargs="*", metavar="PATH|REF", help=f"a file, a folder, or {REFERENCE}")
    lint.add_argument(
        "--format",
        choices=("text", "json", "sarif", "github", "markdown"),
        help="text is the default; github: annotations of a workflow; markdown: with --rules alone",
    )
    lint.add_argument("--json", action="store_true", help="the same as --format json")
    lint.add_argument("--rules", action="store_true", help="print the rules instead")

    show = add(
        "show",
        "one page about a variant: what it is, how it is served, what was measured, what not to do",
        "enplace show Qwen/Qwen3-Coder-Next:gaudi2-bf16-tp4",
        "enplace show enplace/smoke --json",
    )
    show.add_argument("reference", metavar="REF", help=f"{REFERENCE}; every variant where none is named")
    show.add_argument("--json", action="store_true", help="the same as data")

    render = add(
        "render",
        "what serves a variant: the systemd unit of a host, or commands for a shell",
        "enplace render enplace/smoke:cpu                                    the unit, with default settings",
        "enplace render --shell Qwen/Qwen3-Coder-Next:gaudi2-bf16-tp4        commands for a shell or a container",
        "enplace render --json Qwen/Qwen3-Coder-Next:spark-nvfp4-eagle3      for a program",
    )
    render.add_argument("reference", metavar="REF", help=REFERENCE)
    form = render.add_mutually_exclusive_group()
    form.add_argument("--shell", action="store_true", help="exported variables, the fixes, `vllm serve`")
    form.add_argument("--json", action="store_true", help="environment, fixes and arguments as data")

    plan = add(
        "plan",
        "what a variant takes: downloads, disk and memory",
        "enplace plan Qwen/Qwen3-Coder-Next:spark-nvfp4-eagle3",
        "enplace plan --memory --kv-bytes 16G Qwen/Qwen3-Coder-Next:spark-nvfp4-eagle3",
        "enplace plan --rate 100m Qwen/Qwen3.6-27B:spark-fp8     with the time of a download at 100 MB/s",
    )
    plan.add_argument("reference", metavar="REF", help=f"{REFERENCE}; every variant where none is named")
    plan.add_argument("--memory", action="store_true", help="every step of the arithmetic of memory")
    plan.add_argument(
        "--kv-bytes", metavar="BYTES", help="a KV pool of this size instead: 8589934592, 8G (binary), 8g (decimal)"
    )
    plan.add_argument("--rate", metavar="BYTES", help="bytes a second of the download, such as 100m")
    plan.add_argument("--json", action="store_true", help="the same as data")

    pin = add(
        "pin",
        "write the commit and every file's size and SHA-256 into a recipe",
        "enplace pin Qwen/Qwen3-0.6B:cpu-bf16              what is unpinned, or a commit without its files",
        "enplace pin --update Qwen/Qwen3-0.6B              the newest commit of every variant's weights",
        "enplace pin --check Qwen/Qwen3-0.6B               only say what would change; ends with 1 if something would",
    )
    pin.add_argument("reference", metavar="REF", help=f"{REFERENCE}; every variant where none is named")
    pin.add_argument("--check", action="store_true", help="write nothing")
    pin.add_argument("--update", action="store_true", help="the newest commit also of what is pinned")
    pin.add_argument("--endpoint", metavar="URL", help="the hub; HF_ENDPOINT, else https://huggingface.co")
    pin.add_argument(
        "--token-file",
        metavar="FILE",
        help="a file that holds the token; else HF_TOKEN or HF_TOKEN_PATH of the environment. Never an argument",
    )

    lock = add(
        "lock",
        "make the locks of an engine anew: every package with its version and its hashes",
        "enplace lock --check vllm/0.28.0                        whether the locks can be made again, byte for byte",
        "enplace lock vllm/0.28.0 --platform cpu                 one platform, as the manifest records it",
        "enplace lock vllm/0.28.0 --exclude-newer 2026-12-01     with what was published until then",
    )
    lock.add_argument(
        "engine", metavar="ENGINE[/VERSION]", help="a folder below engines/; every version where none is named"
    )
    lock.add_argument("--platform", default="", help="one platform alone, by its accelerator or the name of its lock")
    lock.add_argument(
        "--exclude-newer", metavar="DATE", default="", help="another moment after which nothing counts: 2026-12-01"
    )
    lock.add_argument("--check", action="store_true", help="write nothing; end with 1 where a lock would change")
    lock.add_argument("--find-links", metavar="PLACE", action="append", default=[], help="a folder with wheels besides")
    lock.add_argument("--index-url", metavar="URL", default="", help="the package index, where it is not uv's own")
    lock.add_argument(
        "--uv",
        # `uv run` tells its children which uv ran them; it need not be on PATH.
        default=os.environ.get("UV") or "uv",
        help="the uv to use; where it is not given, the one that runs this command, else the one on PATH",
    )

    report = add(
        "report",
        "make pages of the reports of verification: HTML, Markdown and JUnit XML beside each, index.html for a folder",
        "enplace report                                          those that runs have kept in ./reports",
        "enplace report reports/spark                            of one host",
        "enplace report reports/spark/enplace-smoke-cpu.json     one report",
    )
    report.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="a report, the folder of a host, or a folder of hosts; ./reports where none is named",
    )

    doctor = add(
        "doctor",
        "what is known to go wrong on hosts: drivers, kernels, packages, memory; nothing is changed",
        "enplace doctor spark -i inventories/my          ask a host",
        "enplace doctor --all spark                      with everything that is well",
        "enplace doctor --json spark > facts.json        the facts of the host, and the findings",
        "enplace doctor --facts facts.json               judge those, and ask no host",
    )
    doctor.add_argument(
        "hosts", nargs="*", metavar="HOST", help="a host or a group of the inventory; all of it where none is named"
    )
    doctor.add_argument("-i", "--inventory", metavar="PATH", help="the inventory, where it is not that of ansible.cfg")
    doctor.add_argument("--facts", metavar="FILE", help="judge stored facts instead of asking hosts")
    doctor.add_argument("--all", action="store_true", help="also show what is well, and what does not apply")
    doctor.add_argument("--json", action="store_true", help="the facts and the findings as data")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit status."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows its number; it is no reason to stop.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    parser = _parser()
    options = parser.parse_args(argv)
    run: Callable[[argparse.Namespace], int] = importlib.import_module(f".{options.command}", __package__).run
    try:
        status = run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Who reads has read enough. Python would complain once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
