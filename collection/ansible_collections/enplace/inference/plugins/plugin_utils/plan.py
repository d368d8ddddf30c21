# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""From a recipe, the inventory's settings and a host's facts to the plan of one release. Pure, controller side."""

from __future__ import annotations

import copy
import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils import unit as unit_file
from ansible_collections.enplace.inference.plugins.module_utils.environment import (
    DIGEST_NAME_LENGTH,
    environment_digest,
)
from ansible_collections.enplace.inference.plugins.module_utils.files import canonical_json, json_text, sha256_bytes

from . import memory
from .engines import load_engine
from .lint import Subject, run_rules
from .recipe import COLLECTION, ENGINES, Document, Problem, Recipe, RecipeError, did_you_mean, in_order

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
UNPINNED = "unpinned"
# The linter's rule about it.
UNPINNED_RULE = "unpinned-revision"
# What a variant takes from the hub: the key in the recipe, and what people call it.
MODELS = {"weights": "the weights", "draft": "the draft"}
# Where the CUDA toolkit's packages put a link to the version that is installed.
CUDA_HOME = "/usr/local/cuda"

# Looks a repository up on the hub: (repository, patterns of the files that are wanted, none: all) -> commit and files,
# each {path, bytes, sha256}. Raises RecipeError.
LookUp = Callable[[str, Sequence[str]], tuple[str, list[dict[str, Any]]]]


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
    "allow_unpinned": Setting("bool", False),
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


def refusals(recipe: Recipe, variant_name: str, settings: Mapping[str, Any]) -> list[Problem]:
    """Why this version of enplace does not apply the variant at all, whatever the host. Empty: it does.

    What it cannot do is refused as a whole and never half done.
    """
    variant = recipe.variants[variant_name]
    reference = f"{recipe.name}:{variant_name}"
    by_hand = f"serve it by hand: enplace render {reference} --shell prints the commands"
    problems = []

    def refuse(key: tuple[str, ...], what: str, found: str, expected: str, todo: str) -> None:
        problems.append(Problem(recipe.document.place(("variants", variant_name, *key)), what, found, expected, todo))

    fixes = variant.get("fixes")
    if fixes is not None:
        found = ", ".join([f"profile {fixes['profile']}", *fixes.get("opt_in", [])])
        what = "this version of enplace does not apply fixes yet"
        refuse(("fixes",), what, found, "a variant without fixes", by_hand)
    nodes = variant.get("nodes", 1)
    if nodes > 1:
        what = "this version of enplace does not serve over several hosts yet"
        refuse(("nodes",), what, str(nodes), "a variant of one node", by_hand)
    engine = load_engine(variant["engine"]["name"], variant["engine"]["version"])
    if "sources" in engine.data:
        what = "this version of enplace does not build an engine from its sources yet"
        found = f"{engine.data['engine']} {engine.data['version']}, of which only the packages of the index are locked"
        refuse(("engine",), what, found, "an engine that is installed from a lock alone", by_hand)
    if not settings["allow_unpinned"]:
        for part, name in unpinned(variant):
            refuse(
                (part, "revision"),
                f"the commit of {name} is not known",
                UNPINNED,
                "a commit of 40 hex digits, with the files",
                f"run enplace pin {reference}; or set enplace_allow_unpinned: true, and every run takes what the hub "
                "has on that day",
            )
    return problems


def unpinned(variant: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The models of a variant whose commit is not known: key in the recipe, and name for people."""
    return [(part, name) for part, name in MODELS.items() if variant.get(part, {}).get("revision") == UNPINNED]


def pin_in_memory(recipe: Recipe, variant_name: str, look_up: LookUp) -> tuple[Recipe, list[str]]:
    """The recipe with what is not pinned looked up on the hub, for one run, and a warning for each such model.

    The file of the recipe is not changed. Raises RecipeError, as look_up does.
    """
    missing = unpinned(recipe.variants[variant_name])
    if not missing:
        return recipe, []
    document = recipe.document
    data = copy.deepcopy(document.data)
    warnings = []
    for part, name in missing:
        model = data["variants"][variant_name][part]
        commit, files = look_up(model["repository"], model.get("include", []))
        model.update({"revision": commit, "files": files})
        size = sum(item["bytes"] for item in files)
        warnings.append(
            f"{recipe.name}:{variant_name}: {name}, {model['repository']}, had no commit: this run takes {commit} "
            f"({len(files)} files, {_gb(size)}), the next may take another. enplace pin {recipe.name}:{variant_name} "
            "writes it into the recipe"
        )
    return Recipe(Document(document.path, data, document.places, document.values)), warnings


def lint(recipe: Recipe, variant_name: str) -> list[Problem]:
    """The linter's findings about one variant of a loaded recipe, in the order of the file."""
    # Not at the top: reading all rules takes longer than making a unit's text, which needs none of them.
    from .rules import RULES

    engine = recipe.variants[variant_name]["engine"]
    manifest = load_engine(engine["name"], engine["version"])
    return in_order(run_rules(RULES, Subject(recipe.document, variant_name, manifest)))


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
    aliases = platform.get("aliases", [])
    environment = environment_digest(lock_digest(lock), python["version"], aliases, [])
    environment_path = PREFIX / "environments" / environment[:DIGEST_NAME_LENGTH]
    tools = environment_digest(lock_digest(TOOLS_LOCK), python["version"], [], [])
    tools_path = PREFIX / "tools" / tools[:DIGEST_NAME_LENGTH]

    weights = variant["weights"]
    served_name = variant.get("served_name", recipe.name)
    url = url_of(settings)
    release_files = {"ready.py": READY_SOURCE.read_text(encoding="utf-8")}
    decides = {
        "recipe": reference,
        "engine": variant["engine"],
        "environment": environment,
        "weights": weights,
        # Absent where there is none: a release of before this key keeps its digest.
        **({"draft": variant["draft"]} if "draft" in variant else {}),
        "checks": variant["checks"],
        "accelerator": variant["accelerator"],
        "arguments": [[k, v] for k, v in variant["arguments"].items()],
        "variables": variant.get("environment", {}),
        "listen": settings["listen"],
        "port": settings["port"],
        "ready": variant["ready"],
        "files": release_files,
        # The template decides behaviour too: a changed one is another release.
        "unit": unit_file.render_whole(
            _unit(reference, slug, variant, settings, served_name, environment_path, Path("@release@"))
        ),
    }
    digest = digest_of(decides)
    release_path = PREFIX / "releases" / slug / digest[:DIGEST_NAME_LENGTH]
    unit_text = unit_file.render_whole(
        _unit(reference, slug, variant, settings, served_name, environment_path, release_path)
    )
    manifest = {
        "format": 1,
        "recipe": reference,
        "digest": digest,
        "engine": variant["engine"],
        "environment": {"path": str(environment_path), "digest": environment},
        **{
            part: {"repository": model["repository"], "revision": model["revision"], "path": str(snapshot_of(model))}
            for part, model in models_of(variant)
        },
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
        "memory_estimate_bytes": memory_needed(recipe, variant_name, engine),
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
            "aliases": aliases,
            "assertions": platform.get("assertions", []),
            "torch_backend": platform.get("torch_backend"),
            "uv": str(tools_path / "bin" / "uv"),
            "installed_bytes": platform["installed_bytes"],
        },
        "weights": {
            "models": [
                {"repo": model["repository"], "revision": model["revision"], "files": model["files"]}
                for _part, model in models_of(variant)
            ],
            "cache": str(HUB_CACHE),
            "hf": str(tools_path / "bin" / "hf"),
            "snapshots": [
                {
                    "what": MODELS[part],
                    "path": str(snapshot_of(model)),
                    "bytes": sum(item["bytes"] for item in model["files"]),
                }
                for part, model in models_of(variant)
            ],
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


def url_of(settings: Mapping[str, Any]) -> str:
    """Where the server is asked from its own host."""
    host = "127.0.0.1" if settings["listen"] in ("0.0.0.0", "localhost") else settings["listen"]
    host = "[::1]" if host == "::" else f"[{host}]" if ":" in host else host
    return f"http://{host}:{settings['port']}"


def models_of(variant: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The models that a variant takes from the hub, with their keys: the weights, then the draft if there is one."""
    for part in MODELS:
        if part in variant:
            yield part, variant[part]


def arguments_of(variant: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's flags, in the recipe's order, with the draft's place on the host put into speculative-config."""
    arguments = dict(variant["arguments"])
    config = arguments.get("speculative-config")
    if "draft" in variant and isinstance(config, Mapping):
        arguments["speculative-config"] = {**config, "model": str(snapshot_of(variant["draft"]))}
    return arguments


def _cuda_variables(cache: Path) -> dict[str, str]:
    """What FlashInfer needs: it compiles its kernels at the first start, with the nvcc of the host's toolkit."""
    return {"CUDA_HOME": CUDA_HOME, "FLASHINFER_WORKSPACE_BASE": str(cache)}


def _unit(
    reference: str,
    slug: str,
    variant: Mapping[str, Any],
    settings: Mapping[str, Any],
    served_name: str,
    environment_path: Path,
    release_path: Path,
) -> unit_file.Unit:
    cache = CACHE / slug
    cuda = variant["accelerator"] == "gb10"
    # The environment comes first: its own ninja is the one that its kernels are compiled with.
    folders = [f"{environment_path}/bin", *([f"{CUDA_HOME}/bin"] if cuda else [])]
    folders += ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    variables = {
        "PATH": ":".join(folders),
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
        **(_cuda_variables(cache) if cuda else {}),
        **variant.get("environment", {}),
    }
    argv = [
        f"{environment_path}/bin/vllm",
        "serve",
        str(snapshot_of(variant["weights"])),
        "--served-model-name",
        served_name,
        "--host",
        settings["listen"],
        "--port",
        str(settings["port"]),
        *unit_file.argv_of(arguments_of(variant)),
    ]
    timeout = variant["ready"]["timeout_s"]
    ready = [
        f"{environment_path}/bin/python",
        f"{release_path}/ready.py",
        "--url",
        url_of(settings),
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
    needed = plan["memory_estimate_bytes"]
    if not problems and needed is not None and facts["memory"]["total_bytes"] < needed:
        problems.append(
            Problem(
                f"{host} memory",
                f"cannot hold {plan['recipe']}",
                _gb(facts["memory"]["total_bytes"]),
                f"at least {_gb(needed)}, by the plan",
                f"use a larger host or another variant; enplace plan {plan['recipe']} --memory shows the parts",
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
        *((model["what"], plan["weights"]["cache"], model["bytes"]) for model in missing_models(plan, facts)),
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
    missing = " and ".join(model["what"] for model in missing_models(plan, facts))
    sealed = sealed_paths(facts)
    needs_index = (
        bool(settings["index_url"]) and not {plan["environment"]["path"], plan["host"]["tools"]["path"]} <= sealed
    )
    wanted = []
    if missing:
        wanted.append((settings["hub_endpoint"], "enplace_hub_endpoint", missing))
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


def missing_models(plan: Mapping[str, Any], facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The models of which the host has nothing at this commit."""
    return [model for model in plan["weights"]["snapshots"] if not facts["paths"][model["path"]]["exists"]]


def memory_needed(recipe: Recipe, variant_name: str, engine: Document) -> int | None:
    """Bytes of the host's own memory that the server cannot do without, by the estimate; None: not known.

    Where the accelerator has memory of its own the host's says nothing. A KV pool counts only where the recipe states
    its size: the engine takes any other from what it finds.
    """
    variant = recipe.variants[variant_name]
    if variant["accelerator"] not in ("cpu", "gb10"):
        return None
    found = memory.estimate(recipe.document.data["model"], variant, engine)
    return found.used_at_least_bytes if found.pool_source == "pinned" else found.weights_bytes


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
            *(str(snapshot_of(model)) for _part, model in models_of(variant)),
        ],
        "ports": [settings["port"]],
        "environments": [str(PREFIX / "tools"), str(PREFIX / "environments")],
        "reachable": urls,
    }


def unit_text(
    recipe: Recipe,
    variant_name: str,
    settings: Mapping[str, Any],
    python: str = "",
    *,
    environment_path: Path = PREFIX / "environments" / "@environment@",
    release_path: Path | None = None,
) -> str:
    """The unit's text without a host, for people. Works for models that are not pinned yet.

    The two folders that only a host names are @environment@ and @release@ unless given. python decides the
    environment's name alone, so it says nothing here.
    """
    del python
    variant = recipe.variants[variant_name]
    slug = slug_of(recipe.name, variant_name)
    return unit_file.render_whole(
        _unit(
            f"{recipe.name}:{variant_name}",
            slug,
            variant,
            settings,
            variant.get("served_name", recipe.name),
            environment_path,
            release_path or PREFIX / "releases" / slug / "@release@",
        )
    )
