# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""From a recipe, the inventory's settings and a host's facts to the plan of one release. Pure, controller side."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils import unit as unit_file
from ansible_collections.enplace.inference.plugins.module_utils.environment import (
    DIGEST_NAME_LENGTH,
    environment_digest,
)
from ansible_collections.enplace.inference.plugins.module_utils.files import canonical_json, json_text, sha256_bytes

from .recipe import COLLECTION, ENGINES, Document, Problem, Recipe, RecipeError, did_you_mean, load_engine

PREFIX = Path("/opt/enplace")
STATE = Path("/var/lib/enplace")
CACHE = Path("/var/cache/enplace")
HUB_CACHE = STATE / "hub"
USER = "enplace"
READY_SOURCE = COLLECTION / "plugins" / "module_utils" / "ready.py"
TOOLS = ENGINES / "tools"
TOOLS_LOCK = TOOLS / "requirements.lock.txt"
# uv and hf, unpacked and compiled, with room for the packages' own caches.
TOOLS_BYTES = 400_000_000
# What every host gets besides its engine's own packages: what a venv and TLS need.
BASE_PACKAGES = ("ca-certificates", "python3-venv")


@dataclass(frozen=True)
class Setting:
    """An inventory variable that the resolver reads: its name without the prefix, its kind and its default."""

    kind: str
    default: Any


# The single list of inventory variables; the module's documentation repeats it for people, and a test compares the two.
SETTINGS: dict[str, Setting] = {
    "recipe": Setting("str", None),
    "recipe_folders": Setting("list", []),
    "listen": Setting("str", "127.0.0.1"),
    "port": Setting("int", 8000),
    "allow_unauthenticated": Setting("bool", False),
    "hub_endpoint": Setting("str", "https://huggingface.co"),
    "hub_token_file": Setting("str", None),
    "find_links": Setting("list", []),
    "index_url": Setting("str", None),
    "ca_bundle": Setting("str", None),
    "reports_dir": Setting("str", "reports"),
}


def read_settings(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The enplace_* variables of a host, checked and completed with defaults.

    An unknown enplace_ name is an error: a misspelt setting that is ignored is a wrong server. Raises RecipeError.
    """
    problems = []
    settings = {name: setting.default for name, setting in SETTINGS.items()}
    for name, value in sorted(variables.items()):
        if not name.startswith("enplace_"):
            continue
        key = name.removeprefix("enplace_")
        if key not in SETTINGS:
            known = [f"enplace_{known}" for known in SETTINGS]
            problems.append(
                Problem(
                    f"inventory {name}",
                    "unknown variable",
                    name,
                    did_you_mean(name, known),
                    "correct the name or remove it",
                )
            )
            continue
        try:
            settings[key] = _convert(SETTINGS[key].kind, value)
        except ValueError as error:
            problems.append(Problem(f"inventory {name}", "has a wrong value", f"{value!r}", str(error)))
    if not problems:
        problems = list(_judge_settings(settings))
    if problems:
        raise RecipeError(problems)
    return settings


def _convert(kind: str, value: Any) -> Any:
    if value is None:
        return None
    if kind == "bool":
        if isinstance(value, bool):
            return value
        if str(value).lower() in ("true", "yes", "on", "1", "false", "no", "off", "0"):
            return str(value).lower() in ("true", "yes", "on", "1")
        raise ValueError("true or false")
    if kind == "int":
        if isinstance(value, bool) or not re.fullmatch(r"[0-9]+", str(value)):
            raise ValueError("a whole number")
        return int(value)
    if kind == "list":
        if (
            isinstance(value, str)
            or not isinstance(value, (list, tuple))
            or not all(isinstance(item, str) for item in value)
        ):
            raise ValueError("a list of texts")
        return [str(item) for item in value]
    if not isinstance(value, str):
        raise ValueError("text")
    return str(value) or None


def is_loopback(listen: str) -> bool:
    """Whether a server bound to `listen` is reachable from its own host only."""
    try:
        return ipaddress.ip_address(listen).is_loopback
    except ValueError:
        return listen == "localhost"


def _judge_settings(settings: Mapping[str, Any]) -> list[Problem]:
    problems = []
    if not settings["recipe"]:
        problems.append(
            Problem(
                "inventory enplace_recipe",
                "is not set",
                "",
                "<org>/<model>:<variant>, for example enplace/smoke:cpu",
                "set it for the host or its group",
            )
        )
    if not 1 <= settings["port"] <= 65535:
        problems.append(Problem("inventory enplace_port", "is not a port", str(settings["port"]), "1 to 65535"))
    if not re.fullmatch(r"[0-9A-Za-z.:-]+", settings["listen"]):
        problems.append(
            Problem(
                "inventory enplace_listen",
                "is not an address",
                settings["listen"],
                "an address of the host, such as 127.0.0.1",
            )
        )
    elif not is_loopback(settings["listen"]) and not settings["allow_unauthenticated"]:
        problems.append(
            Problem(
                "inventory enplace_listen",
                "opens the server to the network without authentication",
                settings["listen"],
                "127.0.0.1, or enplace_allow_unauthenticated: true",
                "keep it on loopback behind your own proxy, or say that everybody on that network may use it",
            )
        )
    for name in ("hub_endpoint", "index_url"):
        value = settings[name]
        if value and not re.fullmatch(r"https?://[^\s/@]+(/\S*)?", value):
            # The value may hold a password, and messages end up in logs.
            shown = "a URL with a user name in it" if "@" in value else value
            problems.append(
                Problem(
                    f"inventory enplace_{name}", "is not a URL without user and password", shown, "https://host/..."
                )
            )
    for name in ("hub_token_file", "ca_bundle"):
        if settings[name] and not settings[name].startswith("/"):
            problems.append(
                Problem(f"inventory enplace_{name}", "is not an absolute path on the host", settings[name], "/etc/...")
            )
    return problems


def slug_of(recipe: str, variant: str) -> str:
    """`enplace-smoke-cpu` for enplace/smoke and cpu: names the unit and the folders of a recipe on a host."""
    return re.sub(r"[^a-z0-9]+", "-", f"{recipe}-{variant}".lower()).strip("-")


def digest_of(data: Any) -> str:
    """sha256 (64 hex) of data as canonical JSON: the same content gives the same digest on every machine."""
    return sha256_bytes(canonical_json(data))


def pick_platform(engine: Document, accelerator: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The engine manifest's entry for this accelerator and host. Raises RecipeError naming the platforms there are."""
    python = ".".join(str(facts["python"]["version"]).split(".")[:2]) if facts["python"]["version"] else "none"
    wanted = (accelerator, facts["arch"], python)
    for platform in engine.data["platforms"]:
        if (platform["accelerator"], platform["arch"], platform["python"]) == wanted:
            return dict(platform)
    have = "; ".join(f"{p['accelerator']}, {p['arch']}, Python {p['python']}" for p in engine.data["platforms"])
    found = f"{wanted[0]}, {wanted[1]}, Python {wanted[2]}"
    raise RecipeError(
        [
            Problem(
                f"{engine.path} platforms",
                f"the engine {engine.data['engine']} {engine.data['version']} has no lock for this host",
                found,
                have,
                "use a host of such a platform, or another variant",
            )
        ]
    )


def lock_digest(path: Path) -> str:
    """sha256 (64 hex) of a lock file. Raises RecipeError when it cannot be read."""
    try:
        return sha256_bytes(path.read_bytes())
    except OSError as error:
        raise RecipeError(
            [
                Problem(
                    str(path),
                    "the lock cannot be read",
                    error.strerror or str(error),
                    "a requirements file with hashes",
                )
            ]
        ) from error


def make_plan(
    recipe: Recipe, variant_name: str, settings: Mapping[str, Any], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """The plan of one release on one host: the options of every role, as plain data. Raises RecipeError.

    facts: `arch`, `python` {path, version} and `environments` as the module host_facts gives them.
    """
    variant = recipe.variants[variant_name]
    reference = f"{recipe.name}:{variant_name}"
    slug = slug_of(recipe.name, variant_name)
    engine = load_engine(variant["engine"]["name"], variant["engine"]["version"])
    platform = pick_platform(engine, variant["accelerator"], facts)
    python = facts["python"]
    lock = engine.path.parent / platform["lock"]
    environment = environment_digest(lock_digest(lock), python["version"], platform["aliases"], [])
    environment_path = PREFIX / "environments" / environment[:DIGEST_NAME_LENGTH]
    tools = environment_digest(lock_digest(TOOLS_LOCK), python["version"], [], [])
    tools_path = PREFIX / "tools" / tools[:DIGEST_NAME_LENGTH]

    weights = variant["weights"]
    snapshot = snapshot_of(weights)
    served_name = variant.get("served_name", recipe.name)
    host = "127.0.0.1" if settings["listen"] in ("0.0.0.0", "localhost") else settings["listen"]
    host = "[::1]" if host == "::" else f"[{host}]" if ":" in host else host
    url = f"http://{host}:{settings['port']}"
    release_files = {"ready.py": READY_SOURCE.read_text(encoding="utf-8")}
    decides = {
        "recipe": reference,
        "engine": variant["engine"],
        "environment": environment,
        "weights": weights,
        "checks": variant["checks"],
        "accelerator": variant["accelerator"],
        "arguments": [[k, v] for k, v in variant["arguments"].items()],
        "variables": variant.get("environment", {}),
        "listen": settings["listen"],
        "port": settings["port"],
        "ready": variant["ready"],
        "files": release_files,
        # The template decides behaviour too: a changed one is another release.
        "unit": unit_file.render(
            _unit(reference, slug, variant, settings, url, served_name, environment_path, snapshot, Path("@release@"))
        ),
    }
    digest = digest_of(decides)
    release_path = PREFIX / "releases" / slug / digest[:DIGEST_NAME_LENGTH]
    unit_text = unit_file.render(
        _unit(reference, slug, variant, settings, url, served_name, environment_path, snapshot, release_path)
    )
    manifest = {
        "format": 1,
        "recipe": reference,
        "digest": digest,
        "engine": variant["engine"],
        "environment": {"path": str(environment_path), "digest": environment},
        "weights": {"repository": weights["repository"], "revision": weights["revision"], "path": str(snapshot)},
        "url": url,
        "model": served_name,
    }
    release_files["unit.service"] = unit_text
    release_files["release.json"] = json_text(manifest)
    checks = [_complete_check(check, variant) for check in variant["checks"]]
    return {
        "recipe": reference,
        "slug": slug,
        "digest": digest,
        "url": url,
        "model": served_name,
        "unit": f"enplace-{slug}.service",
        "memory_bytes": variant["host"]["memory_bytes"],
        "listen": settings["listen"],
        "port": settings["port"],
        "host": {
            "packages": sorted({*BASE_PACKAGES, *platform["packages"]}),
            "user": USER,
            "directories": directories(),
            "tools": {
                "path": str(tools_path),
                "digest": tools,
                "lock": str(TOOLS_LOCK),
                "installed_bytes": TOOLS_BYTES,
            },
        },
        "environment": {
            "path": str(environment_path),
            "digest": environment,
            "lock": str(lock),
            "python": python["path"],
            "aliases": platform["aliases"],
            "torch_backend": platform.get("torch_backend"),
            "uv": str(tools_path / "bin" / "uv"),
            "installed_bytes": platform["installed_bytes"],
        },
        "weights": {
            "models": [{"repo": weights["repository"], "revision": weights["revision"], "files": weights["files"]}],
            "cache": str(HUB_CACHE),
            "hf": str(tools_path / "bin" / "hf"),
            "bytes": sum(item["bytes"] for item in weights["files"]),
            "snapshot": str(snapshot),
        },
        "service": {
            "path": str(release_path),
            "files": release_files,
            "ready_timeout_s": variant["ready"]["timeout_s"],
        },
        "verify": {
            "python": str(environment_path / "bin" / "python"),
            "checks": checks,
            "report": str(STATE / "reports" / slug / "latest.json"),
            "engine": variant["engine"],
        },
    }


def _complete_check(check: Mapping[str, Any], variant: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe states its context once, as the engine's argument; the identity check is told so."""
    context = variant["arguments"].get("max-model-len")
    if check["check"] == "identity" and context and "context" not in check:
        return {**check, "context": context}
    return dict(check)


def directories() -> list[dict[str, str]]:
    """Every directory that the host role makes, parents first. Code belongs to root, state to the service user."""
    root = [PREFIX, PREFIX / "tools", PREFIX / "environments", PREFIX / "releases", CACHE, CACHE / "uv"]
    own = [STATE, HUB_CACHE, STATE / "reports"]
    return [{"path": str(p), "owner": "root", "group": "root", "mode": "0755"} for p in root] + [
        {
            "path": str(p),
            "owner": USER if p != STATE / "reports" else "root",
            "group": USER if p != STATE / "reports" else "root",
            "mode": "0755",
        }
        for p in own
    ]


def _unit(
    reference: str,
    slug: str,
    variant: Mapping[str, Any],
    settings: Mapping[str, Any],
    url: str,
    served_name: str,
    environment_path: Path,
    snapshot: Path,
    release_path: Path,
) -> unit_file.Unit:
    cache = CACHE / slug
    variables = {
        "PATH": f"{environment_path}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(STATE),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_CACHE": str(HUB_CACHE),
        # Whatever compiles at run time writes below the unit's own cache directory, the only writable place it has.
        "XDG_CACHE_HOME": str(cache),
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        **variant.get("environment", {}),
    }
    argv = [
        f"{environment_path}/bin/vllm",
        "serve",
        str(snapshot),
        "--served-model-name",
        served_name,
        "--host",
        settings["listen"],
        "--port",
        str(settings["port"]),
        *unit_file.argv_of(variant["arguments"]),
    ]
    timeout = variant["ready"]["timeout_s"]
    ready = [
        f"{environment_path}/bin/python",
        f"{release_path}/ready.py",
        "--url",
        url,
        "--model",
        served_name,
        "--deadline",
        str(timeout),
    ]
    return unit_file.Unit(
        description=f"enplace {reference}: {variant['summary']}",
        slug=slug,
        user=USER,
        argv=argv,
        ready_argv=ready,
        environment=variables,
        ready_timeout_s=timeout,
        accelerator=variant["accelerator"],
    )


def sealed_paths(facts: Mapping[str, Any]) -> set[str]:
    """The complete environments of a host."""
    return {entry["path"] for entry in facts["environments"] if entry["sealed"]}


def judge(plan: Mapping[str, Any], facts: Mapping[str, Any], settings: Mapping[str, Any], host: str) -> list[Problem]:
    """Why this plan cannot work on this host, before anything is changed. Empty: nothing found.

    facts as the module host_facts gives them for `questions`.
    """
    problems = []
    if not facts["systemd"]["running"]:
        problems.append(
            Problem(
                f"{host} systemd",
                "is not running",
                str(facts["systemd"]["state"]),
                "a host booted by systemd",
                "use a machine or a container with systemd as its first process",
            )
        )
    if facts["memory"]["total_bytes"] < plan["memory_bytes"]:
        problems.append(
            Problem(
                f"{host} memory",
                f"is too small for {plan['recipe']}",
                _gb(facts["memory"]["total_bytes"]),
                f"at least {_gb(plan['memory_bytes'])}",
                "use a larger host or another variant",
            )
        )
    problems += _judge_port(plan, facts, host)
    problems += _judge_disk(plan, facts, host)
    problems += _judge_network(plan, facts, settings, host)
    return problems


def _judge_port(plan: Mapping[str, Any], facts: Mapping[str, Any], host: str) -> list[Problem]:
    problems = []
    for listener in facts["listeners"]:
        if listener["unit"] == plan["unit"] or not _overlap(plan["listen"], listener["address"]):
            continue
        command = listener["command"][:80] or "a process"
        holder = f"{command} (pid {listener['pid'] or 'unknown'}, unit {listener['unit'] or 'none'})"
        holder += f" listens on {listener['address']}:{listener['port']}"
        problems.append(
            Problem(
                f"{host} port {plan['port']}",
                "is in use",
                holder,
                "a free port",
                f"stop it, or set enplace_port for {host}",
            )
        )
    return problems


def _overlap(listen: str, address: str) -> bool:
    everywhere = {"0.0.0.0", "::"}
    return (
        listen == address
        or listen in everywhere
        or address in everywhere
        or (listen == "localhost" and is_loopback(address))
    )


def _judge_disk(plan: Mapping[str, Any], facts: Mapping[str, Any], host: str) -> list[Problem]:
    sealed = sealed_paths(facts)
    need: dict[str, int] = {}
    paths: dict[str, list[str]] = {}
    free: dict[str, int] = {}
    for what, path, size in (
        (
            "the tools",
            str(PREFIX / "tools"),
            plan["host"]["tools"]["installed_bytes"] if plan["host"]["tools"]["path"] not in sealed else 0,
        ),
        (
            "the environment",
            str(PREFIX / "environments"),
            plan["environment"]["installed_bytes"] if plan["environment"]["path"] not in sealed else 0,
        ),
        (
            "the weights",
            plan["weights"]["cache"],
            plan["weights"]["bytes"] if not facts["paths"][plan["weights"]["snapshot"]]["exists"] else 0,
        ),
    ):
        entry = facts["paths"][path]
        if size:
            need[entry["mount"]] = need.get(entry["mount"], 0) + size
            paths.setdefault(entry["mount"], []).append(f"{what} {_gb(size)}")
            free[entry["mount"]] = entry["free_bytes"]
    return [
        Problem(
            f"{host} {mount}",
            "has not enough free space",
            _gb(free[mount]),
            f"{_gb(size)} ({', '.join(paths[mount])})",
            "free some space, or mount a larger disk there",
        )
        for mount, size in sorted(need.items())
        if free[mount] < size
    ]


def _judge_network(
    plan: Mapping[str, Any], facts: Mapping[str, Any], settings: Mapping[str, Any], host: str
) -> list[Problem]:
    """Only what is still to be downloaded must be reachable: a converged host needs no network."""
    needs_hub = not facts["paths"][plan["weights"]["snapshot"]]["exists"]
    sealed = sealed_paths(facts)
    needs_index = (
        bool(settings["index_url"]) and not {plan["environment"]["path"], plan["host"]["tools"]["path"]} <= sealed
    )
    wanted = []
    if needs_hub:
        wanted.append((settings["hub_endpoint"], "enplace_hub_endpoint", "the weights"))
    if needs_index:
        wanted.append((settings["index_url"], "enplace_index_url", "the environment"))
    answers = {entry["url"]: entry for entry in facts["reachable"]}
    return [
        Problem(
            f"{host} network",
            f"{url} cannot be reached, and {what} must be downloaded",
            str(answers[url]["error"]),
            f"a connection to {url}",
            f"check the host's network, proxy and DNS, or set {name}",
        )
        for url, name, what in wanted
        if not answers[url]["ok"]
    ]


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def snapshot_of(weights: Mapping[str, Any]) -> Path:
    """Where the hub's cache layout puts a repository at a revision."""
    return HUB_CACHE / f"models--{weights['repository'].replace('/', '--')}" / "snapshots" / str(weights["revision"])


def questions(recipe: Recipe, variant_name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the module host_facts that `make_plan` and `judge` need answered, in one execution."""
    variant = recipe.variants[variant_name]
    urls = [settings["hub_endpoint"], *([settings["index_url"]] if settings["index_url"] else [])]
    return {
        "paths": [
            str(PREFIX / "tools"),
            str(PREFIX / "environments"),
            str(HUB_CACHE),
            str(snapshot_of(variant["weights"])),
        ],
        "ports": [settings["port"]],
        "environments": [str(PREFIX / "tools"), str(PREFIX / "environments")],
        "reachable": urls,
    }


def unit_text(recipe: Recipe, variant_name: str, settings: Mapping[str, Any], python: str) -> str:
    """The unit of a variant without a host: for people. The folders that a host names are @environment@ and @release@.

    python: of the engine's platform, such as 3.12.
    """
    del python  # Decides the environment's name alone, which is not told here.
    variant = recipe.variants[variant_name]
    slug = slug_of(recipe.name, variant_name)
    return unit_file.render(
        _unit(
            f"{recipe.name}:{variant_name}",
            slug,
            variant,
            settings,
            f"http://{settings['listen']}:{settings['port']}",
            variant.get("served_name", recipe.name),
            PREFIX / "environments" / "@environment@",
            snapshot_of(variant["weights"]),
            PREFIX / "releases" / slug / "@release@",
        )
    )
