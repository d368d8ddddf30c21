# SPDX-License-Identifier: Apache-2.0
"""Apply the fixes of a profile to the packages that this Python finds, check them, or take them back.

    python3 apply_all.py --profile v0.26.0 gdn-prefix-cache

Exit status: 0 applied, or applied already; 2 usage; 3 the image does not match; 4 conflict; 5 files cannot be written.
Whenever it is not 0, nothing is half-done, or the message says so. Needs Python 3.10 and nothing else; copy the folder
that holds it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fix_engine import IO, OK, USAGE, Pack, Refusal, Site, load_pack, profiles, relocate, search_path

HERE = Path(__file__).resolve().parent


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="apply_all.py",
        description="Apply the fixes of a profile to the installed packages, check them, or take them back.",
        epilog="Exit status: 0 applied, or applied already; 2 usage; 3 the image does not match; 4 conflict; "
        "5 files cannot be written. Whenever it is not 0, nothing is half-done, or the message says so.",
    )
    result.add_argument("fixes", nargs="*", metavar="FIX", help="opt-in fixes, besides those of the profile")
    result.add_argument("--profile", help="the release that the fixes are for; without it, --list lists the profiles")
    result.add_argument("--only", action="store_true", help="the named fixes alone, without those of the profile")
    what = result.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="the fixes of the profile, in their order")
    what.add_argument("--status", action="store_true", help="what is applied, and whether a file has changed since")
    what.add_argument("--check", action="store_true", help="whether it could be applied; nothing is written")
    what.add_argument("--diff", action="store_true", help="what would change, as a diff; nothing is written")
    what.add_argument("--revert", action="store_true", help="take the named fixes back, or all")
    what.add_argument(
        "--new-profile", nargs="+", type=Path, metavar="SOURCE", help="where the anchors are in another source"
    )
    result.add_argument("--path", action="append", metavar="FOLDER", help="look here, not where this Python looks")
    result.add_argument(
        "--accept-changed-files",
        action="store_true",
        help="take files with another digest where every function that is touched is the release's",
    )
    result.add_argument("--json", action="store_true", help="the result as JSON")
    result.add_argument("--packs", type=Path, default=HERE, metavar="FOLDER", help=argparse.SUPPRESS)
    return result


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """The result, as data. Its keys are result, and what belongs to it."""
    known = profiles(arguments.packs)
    if arguments.profile is None and arguments.list:
        return {"result": "listed", "profiles": known}
    if arguments.profile not in known:
        raise Refusal(
            USAGE,
            "there is no such profile" if arguments.profile else "no profile was named",
            str(arguments.packs),
            "--profile " + (" or ".join(known) or "with a pack in this folder"),
            arguments.profile or "no --profile",
            "name the profile of the installed release",
        )
    pack = load_pack(arguments.packs / arguments.profile)
    if arguments.list:
        return {"result": "listed", "profile": pack.profile, "fixes": _listed(pack)}
    if arguments.new_profile:
        return {"result": "relocated", "profile": pack.profile, "edits": relocate(pack, arguments.new_profile)}
    # A name that is wrong is said before anything is looked for.
    for name in arguments.fixes:
        pack.fix(name)
    site = Site(pack, arguments.path or search_path(), arguments.accept_changed_files)
    common = {"profile": pack.profile, "image": site.image()}
    state = site.state()
    applied = [name for name in state.get("applied", []) if name in {fix.name for fix in pack.fixes}]
    if arguments.status:
        result = {"result": "status", **common, "fixes": _listed(pack, applied)}
        return {
            **result,
            "interrupted": site.interrupted(),
            "differing": site.differing(),
            "files": state.get("files", {}),
        }
    if arguments.revert:
        names = _kept(pack, applied, arguments.fixes)
        changes = site.reach(names)
        return {"result": "reverted" if changes else "nothing to revert", **common, **_told(pack, names, changes)}
    names = pack.choose(arguments.fixes, arguments.only, applied)
    if arguments.diff:
        return {"result": "diff", **common, "diff": site.diff(names)}
    if arguments.check:
        changes = [] if site.is_reached(state, names) else site.plan(names)[0]
        return {"result": "would be applied" if changes else "already applied", **common, **_told(pack, names, changes)}
    changes = site.reach(names)
    return {"result": "applied" if changes else "already applied", **common, **_told(pack, names, changes)}


def _kept(pack: Pack, applied: Sequence[str], taken: Sequence[str]) -> list[str]:
    """What stays when some fixes are taken back; all are where none is named."""
    kept = pack.order(set(applied) - set(taken)) if taken else []
    for name in kept:
        lost = [other for other in pack.fix(name).requires if other in taken]
        if lost:
            raise Refusal(
                USAGE,
                f"{name} builds upon a fix that would be taken back",
                expected=f"{name} with {', '.join(lost)}",
                found=f"--revert {' '.join(taken)}",
                todo=f"take {name} back too",
            )
    return kept


def _listed(pack: Pack, applied: Sequence[str] = ()) -> list[dict[str, Any]]:
    return [
        {
            "name": fix.name,
            "opt_in": fix.opt_in,
            "requires": list(fix.requires),
            "written": fix.written,
            "applied": fix.name in applied,
            "summary": fix.summary,
        }
        for fix in pack.fixes
    ]


def _told(pack: Pack, names: Sequence[str], changes: Sequence[Any]) -> dict[str, Any]:
    return {"fixes": _listed(pack, names), "changes": [vars(change) for change in changes]}


def text(result: Mapping[str, Any]) -> str:
    """The result for people."""
    if "profiles" in result:
        return "\n".join(result["profiles"])
    if "diff" in result:
        return str(result["diff"]).rstrip("\n") or "nothing would change"
    if "edits" in result:
        rows = [(row["verdict"], row["fix"], row["file"], row["in"], row["detail"]) for row in result["edits"]]
        return table(rows)
    lines = [f"{result['profile']}: {result['result']}"]
    for found in result.get("image", []):
        commit = f" at {found['commit']}" if found["commit"] else ""
        lines.append(f"  {found['distribution']} {found['version']}{commit} in {found['root']}")
    marks: list[tuple[str, ...]] = []
    for fix in result["fixes"]:
        mark = "applied" if fix["applied"] else "" if fix["written"] else "not written yet"
        marks.append((mark, fix["name"], "opt-in" if fix["opt_in"] else "profile", fix["summary"]))
    lines.append(table(marks))
    lines += [f"  changed: {change['path']}" for change in result.get("changes", [])]
    if result.get("interrupted"):
        lines.append("a run was cut off, or is at work; the next one finishes what it began")
    lines += [f"not as the fixes left it: {file}" for file in result.get("differing", [])]
    return "\n".join(lines)


def table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(len(rows[0]) if rows else 0)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _io(error: OSError) -> Refusal:
    return Refusal(IO, "a file cannot be read or written", str(error.filename or ""), found=str(error))


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    code = OK
    try:
        result = run(arguments)
    except (Refusal, OSError) as error:
        refusal = error if isinstance(error, Refusal) else _io(error)
        result, code = {"result": "refused", "error": refusal.fields, "message": str(refusal)}, refusal.code
    if arguments.json:
        print(json.dumps({**result, "exit": code}, indent=2))
    else:
        print(result.get("message") or text(result), file=sys.stdout if code == OK else sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
