# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""From recipes, the inventory's settings and a host's facts to the plan of one host. Pure, controller side."""

from __future__ import annotations

import copy
import functools
import ipaddress
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils import unit as unit_file
from ansible_collections.enplace.inference.plugins.module_utils.environment import (
    DIGEST_NAME_LENGTH,
    environment_digest,
)
from ansible_collections.enplace.inference.plugins.module_utils.files import canonical_json, json_text, sha256_bytes
from ansible_collections.enplace.inference.plugins.module_utils.verify.checks import FULL, GATE, SUITES, of_suite

from . import memory
from .engines import load_engine
from .lint import Subject, run_rules
from .protection import folders_of, host_files
from .recipe import (
    COLLECTION,
    ENGINES,
    Document,
    Problem,
    Recipe,
    RecipeError,
    did_you_mean,
    find_recipe,
    in_order,
)

PREFIX = Path("/opt/enplace")
STATE = Path("/var/lib/enplace")
CACHE = Path("/var/cache/enplace")
HUB_CACHE = STATE / "hub"
USER = "enplace"
# Programs that lie in a release, because its units run them. The last one starts a server with a key, and only that.
LAUNCHER = "launch.py"
PROGRAMS = {name: COLLECTION / "plugins" / "module_utils" / name for name in ("ready.py", "alive.py", LAUNCHER)}
TOOLS = ENGINES / "tools"
TOOLS_LOCK = TOOLS / "requirements.lock.txt"
# uv and hf, unpacked and compiled, with room for the packages' own caches.
TOOLS_BYTES = 400_000_000
# What every host gets besides its engine's own packages: what a venv and TLS need.
BASE_PACKAGES = ("ca-certificates", "python3-venv")
# What hosts take weights from one another with.
FLEET_PACKAGES = ("rsync",)
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
    """An inventory variable that the resolver reads: its kind, its default, and the only values there are, if any."""

    kind: str
    default: Any
    choices: tuple[str, ...] = ()


# The single list of inventory variables; the module's documentation repeats it for people, and a test compares the two.
SETTINGS: dict[str, Setting] = {
    "recipes": Setting("given", None),
    "recipe_folders": Setting("list", []),
    "listen": Setting("str", "127.0.0.1"),
    "port": Setting("int", 8000),
    "api_key_file": Setting("str", None),
    "allow_unauthenticated": Setting("bool", False),
    "allow_unpinned": Setting("bool", False),
    "retry": Setting("bool", False),
    "keep": Setting("int", 3),
    "deep": Setting("bool", False),
    "hub_endpoint": Setting("str", "https://huggingface.co"),
    "hub_token_file": Setting("str", None),
    "weights_source": Setting("str", "hub", ("hub", "fleet", "offline")),
    "fleet_port": Setting("int", 8730),
    "fleet_address": Setting("str", None),
    "find_links": Setting("list", []),
    "index_url": Setting("str", None),
    "ca_bundle": Setting("str", None),
    "reports_dir": Setting("str", "reports"),
    "status_fail": Setting("bool", True),
    "preflight_fail": Setting("bool", True),
    "teardown_weights": Setting("bool", False),
    "verify_suite": Setting("str", FULL, SUITES),
    "verify_hours": Setting("number", None),
    "verify_without": Setting("list", []),
    "verify_reboot": Setting("bool", False),
    "verify_standby": Setting("bool", False),
    "verify_url": Setting("str", None),
    "verify_model": Setting("str", None),
    "verify_version": Setting("str", None),
    "verify_checks": Setting("given", None),
    "verify_api_key_file": Setting("str", None),
}

# What an entry of enplace_recipes may say, and of which kind it is. The defaults of the first three are settings.
ENTRY = {"listen": "str", "port": "int", "api_key_file": "str", "recipe": "str", "cards": "ints", "standby": "bool"}
ENTRY_DEFAULTS = ("listen", "port", "api_key_file")


@dataclass(frozen=True)
class Target:
    """One entry of enplace_recipes, with the recipe that it names. `number` counts from 0."""

    number: int
    entry: Mapping[str, Any]
    recipe: Recipe
    variant_name: str

    @property
    def reference(self) -> str:
        return f"{self.recipe.name}:{self.variant_name}"

    @property
    def variant(self) -> dict[str, Any]:
        found: dict[str, Any] = self.recipe.variants[self.variant_name]
        return found

    @property
    def slug(self) -> str:
        return slug_of(self.recipe.name, self.variant_name)

    @property
    def unit(self) -> str:
        return f"enplace-{self.slug}.service"

    @property
    def cards(self) -> list[int]:
        """Module numbers of its cards, where an accelerator has several."""
        if self.variant["accelerator"] != "gaudi2":
            return []
        return list(self.entry["cards"] or range(self.variant.get("count", 1)))

    def where(self, key: str = "") -> str:
        """Where the inventory says it."""
        return f"inventory enplace_recipes[{self.number}]" + (f".{key}" if key else "")

    def shares(self, other: Target) -> bool:
        """Whether the two use the same cards; without cards of its own it uses the host's memory, as all others do."""
        if self.variant["accelerator"] != "gaudi2":
            return True
        return other.variant["accelerator"] == "gaudi2" and bool(set(self.cards) & set(other.cards))


def read_settings(variables: Mapping[str, Any], recipes_required: bool = True) -> dict[str, Any]:
    """The enplace_* variables of a host, checked and completed with defaults.

    An unknown enplace_ name is an error: a misspelt setting that is ignored is a wrong server. Raises RecipeError, also
    for a host without recipes where they are required.
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
        if SETTINGS[key].kind == "given":
            settings[key] = value
            continue
        try:
            settings[key] = _convert(SETTINGS[key].kind, value)
        except ValueError as error:
            problems.append(Problem(f"inventory {name}", "has a wrong value", f"{value!r}", str(error)))
    if not problems:
        problems = list(_judge_settings(settings))
    needless = settings["verify_url"] and settings["verify_checks"]
    if not problems and (needless or (settings["recipes"] is None and not recipes_required)):
        # A server that is known by its address alone needs no recipe, nor does a look at a host.
        settings["recipes"] = []
    elif not problems:
        settings["recipes"], problems = _read_entries(settings)
    if problems:
        raise RecipeError(problems)
    return settings


def _read_entries(settings: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[Problem]]:
    """The entries of enplace_recipes, complete, and what is wrong with them."""
    name = "inventory enplace_recipes"
    example = "for example [enplace/smoke:cpu], or [{recipe: enplace/smoke:cpu, port: 8001}]"
    given = settings["recipes"]
    if given is None or given == [] or given == "":
        expected = f"a list of what the host serves, {example}"
        return [], [Problem(name, "is not set" if given is None else "is empty", "", expected, "set it for the host")]
    if isinstance(given, (str, Mapping)) or not isinstance(given, Sequence):
        expected = f"a list, {example}"
        return [], [Problem(name, "has a wrong value", f"{given!r}"[:120], expected, "put what is there into a list")]
    entries: list[dict[str, Any]] = []
    problems: list[Problem] = []
    for number, item in enumerate(given):
        where = f"{name}[{number}]"
        stated: Any = {"recipe": item} if isinstance(item, str) else item
        if not isinstance(stated, Mapping):
            problems.append(
                Problem(where, "has a wrong value", f"{item!r}"[:120], "<org>/<model>:<variant>, or a mapping")
            )
            continue
        entry: dict[str, Any] = {"recipe": None, "cards": None, "standby": False}
        entry |= {key: settings[key] for key in ENTRY_DEFAULTS}
        for key, value in stated.items():
            if key not in ENTRY:
                problems.append(
                    Problem(
                        f"{where}.{key}", "unknown key", str(key), did_you_mean(str(key), ENTRY), "correct or remove it"
                    )
                )
                continue
            try:
                entry[key] = _convert(ENTRY[key], value)
            except ValueError as error:
                problems.append(Problem(f"{where}.{key}", "has a wrong value", f"{value!r}"[:120], str(error)))
        if not entry["recipe"] and f"{where}.recipe" not in {str(problem.where) for problem in problems}:
            problems.append(Problem(f"{where}.recipe", "is not set", "", "<org>/<model>:<variant>", "name a recipe"))
        entries.append(entry)
        place = functools.partial(_place, stated, where)
        known = {str(problem.where) for problem in problems}
        found = (
            [] if any(text.startswith(f"{where}.") for text in known) else list(_judge_entry(entry, place, settings))
        )
        problems += [problem for problem in found if problem.where not in known]
    return entries, problems or list(_judge_ports(entries))


def _place(stated: Mapping[str, Any], where: str, key: str) -> str:
    """Where a person set what holds for an entry: in the entry, or for the whole host."""
    return f"{where}.{key}" if key in stated else f"inventory enplace_{key}"


def _judge_entry(
    entry: Mapping[str, Any], place: Callable[[str], str], settings: Mapping[str, Any]
) -> Iterator[Problem]:
    listen, key_file, cards = entry["listen"], entry["api_key_file"], entry["cards"]
    if not 1 <= entry["port"] <= 65535:
        yield Problem(place("port"), "is not a port", str(entry["port"]), "1 to 65535")
    if not listen or not re.fullmatch(r"[0-9A-Za-z.:-]+", listen):
        yield Problem(place("listen"), "is not an address", str(listen), "an address of the host, such as 127.0.0.1")
    elif not is_loopback(listen) and not key_file and not settings["allow_unauthenticated"]:
        yield Problem(
            place("listen"),
            "opens the server to the network without authentication",
            listen,
            "127.0.0.1, or an API key (enplace_api_key_file), or enplace_allow_unauthenticated: true",
            "keep it on loopback behind your own proxy, put a key into a file on the host and name it, or say that "
            "everybody on that network may use it",
        )
    if key_file and not re.fullmatch(r"/[^\s\x00-\x1f]+", key_file):
        expected = "an absolute path on the host without spaces, of a file of root's with mode 0600"
        yield Problem(place("api_key_file"), "is not such a path", key_file, expected)
    if cards is not None and (not cards or len(set(cards)) != len(cards)):
        yield Problem(
            place("cards"), "has a wrong value", f"{cards}", "the number of each card once, such as [0, 1, 2, 3]"
        )


def _judge_ports(entries: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    for number, entry in enumerate(entries):
        for other_number, other in enumerate(entries[:number]):
            both = _overlap(entry["listen"], other["listen"]) or _overlap(other["listen"], entry["listen"])
            if entry["port"] == other["port"] and both:
                yield Problem(
                    f"inventory enplace_recipes[{number}].port",
                    f"is the port of enplace_recipes[{other_number}], {other['recipe']}, too",
                    f"{entry['listen']}:{entry['port']}",
                    "a port of its own for each entry",
                    f"give {entry['recipe']} another one: {{recipe: {entry['recipe']}, port: {entry['port'] + 1}}}",
                )
                break


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
    if kind == "number":
        try:
            number = float(value) if not isinstance(value, bool) else -1.0
        except (TypeError, ValueError):
            number = -1.0
        if not 0 < number < math.inf:
            raise ValueError("a number above 0")
        return number
    if kind == "list":
        if (
            isinstance(value, str)
            or not isinstance(value, (list, tuple))
            or not all(isinstance(item, str) for item in value)
        ):
            raise ValueError("a list of texts")
        return [str(item) for item in value]
    if kind == "ints":
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ValueError("a list of whole numbers")
        return [_convert("int", item) for item in value]
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
    for name in ("port", "fleet_port"):
        if not 1 <= settings[name] <= 65535:
            found = str(settings[name])
            problems.append(Problem(f"inventory enplace_{name}", "is not a port", found, "1 to 65535"))
    if not settings["keep"]:
        expected = "1 or more: what serves is always kept"
        problems.append(Problem("inventory enplace_keep", "is not a number of releases", "0", expected))
    for name, setting in SETTINGS.items():
        if setting.choices and settings[name] not in setting.choices:
            expected = f"one of {', '.join(setting.choices)}"
            problems.append(Problem(f"inventory enplace_{name}", "has a wrong value", str(settings[name]), expected))
    for name in ("hub_endpoint", "index_url", "verify_url"):
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


def find_targets(settings: Mapping[str, Any], folders: Sequence[Path]) -> list[Target]:
    """What the host serves: every entry with its recipe. Raises RecipeError with the problems of all entries."""
    targets: list[Target] = []
    problems: list[Problem] = []
    for number, entry in enumerate(settings["recipes"]):
        where = f"inventory enplace_recipes[{number}]"
        try:
            recipe, variant_name = find_recipe(entry["recipe"], folders)
        except RecipeError as error:
            problems += [
                replace(problem, where=where) if problem.rule == "reference" else problem for problem in error.problems
            ]
        else:
            targets.append(Target(number, entry, recipe, variant_name))
    problems += _judge_targets(targets)
    if problems:
        raise RecipeError(problems)
    return targets


def _judge_targets(targets: Sequence[Target]) -> Iterator[Problem]:
    """What entries say that does not fit their recipes, or each other."""
    for place, target in enumerate(targets):
        cards, count = target.entry["cards"], target.variant.get("count", 1)
        if cards is not None and target.variant["accelerator"] != "gaudi2":
            found = f"accelerator {target.variant['accelerator']}"
            yield Problem(
                target.where("cards"), f"{target.reference} has no cards to choose", found, "gaudi2", "remove it"
            )
        elif cards is not None and len(cards) != count:
            expected = f"{count}, as {target.reference} says"
            yield Problem(target.where("cards"), "is not the number of cards", f"{len(cards)}: {cards}", expected)
        for other in targets[:place]:
            if target.slug == other.slug:
                same = target.reference == other.reference
                what = f"is {'the recipe' if same else 'named on a host as'} {other.reference} of {other.where()[10:]}"
                yield Problem(
                    target.where("recipe"),
                    f"{what}{', too' if same else ''}",
                    target.reference,
                    "every recipe once",
                    "remove one of the two; another set of arguments is another variant, in a folder of your own",
                )
            elif (
                target.variant["accelerator"] == "gaudi2"
                and target.shares(other)
                and not (target.entry["standby"] or other.entry["standby"])
            ):
                free = sorted(set(range(8)) - {card for each in targets for card in each.cards})
                choice = f", of {free}" if len(free) >= count else ""
                yield Problem(
                    target.where("cards"),
                    f"uses cards of {other.reference}",
                    f"{target.cards}, and {other.cards}",
                    f"cards of its own{choice}, or standby: true for one of the two",
                    f"{{recipe: {target.reference}, cards: [...]}}",
                )


def make_plan(targets: Sequence[Target], facts: Mapping[str, Any], weights_source: str = "hub") -> dict[str, Any]:
    """The plan of one host: the options of every role, as plain data. Raises RecipeError.

    facts: `arch` and `python` {path, version} as the module host_facts gives them. Of the result, `releases` is what
    the module activation takes, an entry each; `servers` says the rest about them, by slug.
    """
    # Standby servers first: each stops the others while it is verified.
    targets = sorted(targets, key=lambda target: not target.entry["standby"])
    # Before anything is computed from it: a host without such a Python has no platform at all.
    platforms = [_platform(target, facts) for target in targets]
    tools = environment_digest(lock_digest(TOOLS_LOCK), facts["python"]["version"], [], [])
    tools_path = PREFIX / "tools" / tools[:DIGEST_NAME_LENGTH]
    packages = {*BASE_PACKAGES, *(FLEET_PACKAGES if weights_source == "fleet" else ())}
    files = host_files({target.variant["accelerator"] for target in targets})
    environments: dict[str, dict[str, Any]] = {}
    releases, servers = [], {}
    for target, (lock, platform) in zip(targets, platforms, strict=True):
        environment = _environment(lock, platform, facts["python"], tools_path)
        packages |= set(platform["packages"])
        known = environments.setdefault(environment["path"], environment)
        known["assertions"] += [each for each in environment["assertions"] if each not in known["assertions"]]
        release, server = _release(target, environment, conflicts_of(target, targets))
        releases.append(release)
        servers[target.slug] = server
    return {
        "host": {
            "packages": sorted(packages),
            "user": USER,
            "directories": directories() + owned_by_root(folders_of(files)),
            "files": files,
            "tools": {
                "path": str(tools_path),
                "digest": tools,
                "lock": str(TOOLS_LOCK),
                "installed_bytes": TOOLS_BYTES,
            },
        },
        "environments": list(environments.values()),
        "weights": _weights(targets, tools_path),
        "releases": releases,
        "servers": servers,
        "wanted": [target.slug for target in targets],
    }


def _platform(target: Target, facts: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
    """The lock that a host takes for an entry, and what the engine's manifest says of this platform."""
    variant = target.variant
    engine = load_engine(variant["engine"]["name"], variant["engine"]["version"])
    platform = pick_platform(engine, variant["accelerator"], facts)
    return engine.path.parent / platform["lock"], platform


def _environment(
    lock: Path, platform: Mapping[str, Any], python: Mapping[str, str], tools_path: Path
) -> dict[str, Any]:
    """The options of the role environment."""
    aliases = platform.get("aliases", [])
    digest = environment_digest(lock_digest(lock), python["version"], aliases, [])
    return {
        "path": str(PREFIX / "environments" / digest[:DIGEST_NAME_LENGTH]),
        "digest": digest,
        "lock": str(lock),
        "python": python["path"],
        "aliases": aliases,
        "assertions": list(platform.get("assertions", [])),
        "torch_backend": platform.get("torch_backend"),
        "uv": str(tools_path / "bin" / "uv"),
        "installed_bytes": platform["installed_bytes"],
    }


def _weights(targets: Sequence[Target], tools_path: Path) -> dict[str, Any]:
    """The options of the role weights: every model once, with all files that any recipe wants of it."""
    models: dict[Path, dict[str, Any]] = {}
    names: dict[Path, str] = {}
    for target in targets:
        for part, model in models_of(target.variant):
            path = snapshot_of(model)
            known = models.setdefault(path, {"repo": model["repository"], "revision": model["revision"], "files": []})
            names.setdefault(path, MODELS[part])
            files = {item["path"]: item for item in known["files"]}
            for item in model["files"]:
                if files.setdefault(item["path"], item) != item:
                    raise RecipeError([_two_manifests(target, part, item, files[item["path"]])])
            known["files"] = list(files.values())
    return {
        "models": list(models.values()),
        "cache": str(HUB_CACHE),
        "hf": str(tools_path / "bin" / "hf"),
        "snapshots": [
            {"what": names[path], "path": str(path), "bytes": sum(item["bytes"] for item in model["files"])}
            for path, model in models.items()
        ],
    }


def _two_manifests(target: Target, part: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> Problem:
    return Problem(
        target.recipe.document.place(("variants", target.variant_name, part, "files")),
        f"another recipe of this host says something else of {one['path']} at the same commit",
        f"{one['bytes']} bytes, sha256 {one['sha256']}",
        f"{other['bytes']} bytes, sha256 {other['sha256']}",
        f"run enplace pin {target.reference}, and the other recipe's",
    )


def conflicts_of(target: Target, targets: Iterable[Target]) -> list[str]:
    """The units that must not run while a standby server does, sorted.

    systemd stops either when the other starts, so it is enough that one of the two names the other. It is the standby
    one, and of two of them the later: a standby that is added leaves the unit that serves as it is.
    """
    if not target.entry["standby"]:
        return []
    others = (other for other in targets if other.number != target.number and target.shares(other))
    return sorted(other.unit for other in others if not other.entry["standby"] or other.number < target.number)


def _release(
    target: Target, environment: Mapping[str, Any], conflicts: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A release as the module activation takes it, and what else is to be known of its server."""
    variant, entry, slug = target.variant, target.entry, target.slug
    engine = load_engine(variant["engine"]["name"], variant["engine"]["version"])
    environment_path = Path(environment["path"])
    served_name = variant.get("served_name", target.recipe.name)
    url = url_of(entry)
    gate = of_suite(variant["checks"], GATE)
    checks = complete_checks(gate, variant)
    decides = {
        "recipe": target.reference,
        "engine": variant["engine"],
        "environment": environment["digest"],
        "weights": variant["weights"],
        "draft": variant.get("draft"),
        "checks": gate,
        "accelerator": variant["accelerator"],
        "arguments": [[k, v] for k, v in variant["arguments"].items()],
        "variables": variant.get("environment", {}),
        "listen": entry["listen"],
        "port": entry["port"],
        "api_key_file": entry["api_key_file"],
        "cards": target.cards,
        "standby": entry["standby"],
        "ready": variant["ready"],
        # The templates and the programs decide behaviour too: a changed one is another release.
        "files": release_files(_unit(target, environment_path, Path("@release@"), conflicts)),
    }
    digest = digest_of(decides)
    path = PREFIX / "releases" / slug / digest[:DIGEST_NAME_LENGTH]
    python = str(environment_path / "bin" / "python")
    report = str(STATE / "reports" / slug / "latest.json")
    files = release_files(_unit(target, environment_path, path, conflicts))
    files["checks.json"] = json_text(
        {
            "url": url,
            "model": served_name,
            "recipe": target.reference,
            "release": digest,
            "engine": variant["engine"],
            "checks": checks,
            "python": python,
            "report": report,
            "api_key_file": entry["api_key_file"] or "",
        }
    )
    needed = memory_needed(target.recipe, target.variant_name, engine)
    estimate = memory.estimate(target.recipe.document.data["model"], variant, engine)
    manifest = {
        "format": 2,
        "recipe": target.reference,
        "slug": slug,
        "digest": digest,
        "unit": target.unit,
        "engine": variant["engine"],
        "environment": {"path": environment["path"], "digest": environment["digest"]},
        **{
            part: {"repository": model["repository"], "revision": model["revision"], "path": str(snapshot_of(model))}
            for part, model in models_of(variant)
        },
        "url": url,
        "listen": entry["listen"],
        "port": entry["port"],
        "model": served_name,
        "accelerator": variant["accelerator"],
        "cards": target.cards,
        "standby": entry["standby"],
        "ready_timeout_s": variant["ready"]["timeout_s"],
        # From the recipe alone: a host's own memory differs by some pages from boot to boot.
        "memory": {"start_bytes": estimate.start_free_bytes or needed},
        "api_key_file": entry["api_key_file"] or "",
        "files": {name: sha256_bytes(text.encode("utf-8")) for name, text in sorted(files.items())},
    }
    files["release.json"] = json_text(manifest)
    release = {
        "slug": slug,
        "recipe": target.reference,
        "digest": digest,
        "path": str(path),
        "unit": target.unit,
        "files": files,
    }
    server = {
        "recipe": target.reference,
        "entry": target.where(),
        "unit": target.unit,
        "release": digest,
        "url": url,
        "model": served_name,
        "engine": variant["engine"],
        "checks": checks,
        "report": report,
        "python": python,
        "listen": entry["listen"],
        "port": entry["port"],
        "accelerator": variant["accelerator"],
        "standby": entry["standby"],
        "api_key_file": entry["api_key_file"] or "",
        "memory_bytes": variant["host"]["memory_bytes"],
        "memory_estimate_bytes": needed,
        "utilization": estimate.utilization if variant["accelerator"] == "gb10" else None,
    }
    return release, server


def release_files(unit: unit_file.Unit) -> dict[str, str]:
    """The files of a release that its unit decides: name to text."""
    service, timer = unit_file.render_alive(unit)
    programs = {name: path for name, path in PROGRAMS.items() if name != LAUNCHER or unit.api_key_file}
    return {
        "unit.service": unit_file.render(unit),
        "environment.conf": unit_file.render_environment(unit),
        "alive.service": service,
        "alive.timer": timer,
        **{name: path.read_text(encoding="utf-8") for name, path in programs.items()},
    }


def complete_checks(checks: Iterable[Mapping[str, Any]], variant: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A recipe states its context once, as the engine's argument; the identity check is told so."""
    context = variant["arguments"].get("max-model-len")
    told = {"context": context} if context else {}
    return [{**told, **check} if check["check"] == "identity" else dict(check) for check in checks]


def owned_by_root(paths: Iterable[str]) -> list[dict[str, str]]:
    """Directories that everybody reads and root writes, as the host role makes them."""
    return [{"path": path, "owner": "root", "group": "root", "mode": "0755"} for path in paths]


def directories() -> list[dict[str, str]]:
    """Every directory that the host role makes, parents first. The server can change the weights' cache alone.

    Its journal and its reports are root's, and so is the folder they lie in: who owns that could replace them.
    """
    root = [PREFIX, PREFIX / "tools", PREFIX / "environments", PREFIX / "releases", CACHE, CACHE / "uv"]
    root += [STATE, STATE / "reports"]
    cache = {"path": str(HUB_CACHE), "owner": USER, "group": USER, "mode": "0755"}
    return [*owned_by_root(map(str, root)), cache]


def url_of(entry: Mapping[str, Any]) -> str:
    """Where the server is asked from its own host."""
    host = "127.0.0.1" if entry["listen"] in ("0.0.0.0", "localhost") else entry["listen"]
    host = "[::1]" if host == "::" else f"[{host}]" if ":" in host else host
    return f"http://{host}:{entry['port']}"


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


def _unit(target: Target, environment_path: Path, release_path: Path, conflicts: Sequence[str] = ()) -> unit_file.Unit:
    variant, entry, slug = target.variant, target.entry, target.slug
    served_name = variant.get("served_name", target.recipe.name)
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
        entry["listen"],
        "--port",
        str(entry["port"]),
        *unit_file.argv_of(arguments_of(variant)),
    ]
    timeout = variant["ready"]["timeout_s"]

    def program(name: str) -> list[str]:
        asked = ["--url", url_of(entry), "--model", served_name]
        return [f"{environment_path}/bin/python", f"{release_path}/{name}", *asked]

    return unit_file.Unit(
        description=f"enplace {target.reference}: {variant['summary']}",
        slug=slug,
        user=USER,
        argv=argv,
        ready_argv=[*program("ready.py"), "--deadline", str(timeout)],
        environment=variables,
        ready_timeout_s=timeout,
        accelerator=variant["accelerator"],
        conflicts=conflicts,
        api_key_file=entry["api_key_file"] or "",
        cards=target.cards,
        alive_argv=program("alive.py"),
        launch_argv=[f"{environment_path}/bin/python", f"{release_path}/{LAUNCHER}"],
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
    problems += _judge_memory(plan, facts, host)
    problems += _judge_port(plan, facts, host)
    problems += _judge_disk(plan, facts, host)
    problems += _judge_network(plan, facts, settings, host)
    return problems


def _judge_memory(plan: Mapping[str, Any], facts: Mapping[str, Any], host: str) -> list[Problem]:
    """What does not fit into the host's memory: each server by itself, and those that run at once."""
    total = facts["memory"]["total_bytes"]
    problems = []
    for server in plan["servers"].values():
        needed = server["memory_estimate_bytes"]
        if total < server["memory_bytes"]:
            expected = f"at least {_gb(server['memory_bytes'])}"
            what, todo = f"is too small for {server['recipe']}", "use a larger host or another variant"
        elif needed is not None and total < needed:
            what, expected = f"cannot hold {server['recipe']}", f"at least {_gb(needed)}, by the plan"
            todo = "use a larger host or another variant; " + _ask_plan([server])
        else:
            continue
        problems.append(Problem(f"{host} memory", what, _gb(total), expected, todo))
    if problems:
        return problems
    together = [each for each in plan["servers"].values() if not each["standby"] and each["memory_estimate_bytes"]]
    needed = sum(server["memory_estimate_bytes"] for server in together)
    parts = ", ".join(f"{server['recipe']} {_gb(server['memory_estimate_bytes'])}" for server in together)
    todo = "take one of them from enplace_recipes, or make it standby: true; " + _ask_plan(together)
    if total < needed:
        expected = f"at least {_gb(needed)}, by the plan: {parts}"
        what = "cannot hold all that enplace_recipes names"
        return [Problem(f"{host} memory", what, _gb(total), expected, todo)]
    for server in together:
        # The engine's own rule, which it applies at each start, and so while all others run.
        free, share = total - needed + server["memory_estimate_bytes"], server["utilization"]
        if share and free < share * total:
            others = ", ".join(other["recipe"] for other in together if other is not server)
            problems.append(
                Problem(
                    f"{host} memory",
                    f"{server['recipe']} would refuse to start beside {others}",
                    f"{_gb(free)} free, by the plan: {parts}",
                    f"{_gb(int(share * total))}, gpu-memory-utilization ({share}) x {_gb(total)}",
                    "lower gpu-memory-utilization in the recipe, with the KV pool pinned; or " + todo,
                )
            )
    return problems


def _ask_plan(servers: Iterable[Mapping[str, Any]]) -> str:
    commands = [f"enplace plan {server['recipe']} --memory" for server in servers]
    return f"{' and '.join(commands)} {'shows' if len(commands) == 1 else 'show'} the parts"


def _judge_port(plan: Mapping[str, Any], facts: Mapping[str, Any], host: str) -> list[Problem]:
    """Ports that somebody else holds. A unit of enplace is no such: the activation stops it, or says that it cannot."""
    problems = []
    for server in plan["servers"].values():
        for listener in facts["listeners"]:
            ours = re.fullmatch(r"enplace-.+\.service", listener["unit"])
            if ours or listener["port"] != server["port"] or not _overlap(server["listen"], listener["address"]):
                continue
            command = listener["command"][:80] or "a process"
            holder = f"{command} (pid {listener['pid'] or 'unknown'}, unit {listener['unit'] or 'none'})"
            place = server["entry"].removeprefix("inventory ") + ".port"
            problems.append(
                Problem(
                    f"{host} port {server['port']}",
                    "is in use",
                    f"{holder} listens on {listener['address']}:{listener['port']}",
                    "a free port",
                    f"stop it, or give {server['recipe']} another port ({place})",
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
        *(
            (
                "the environment",
                str(PREFIX / "environments"),
                environment["installed_bytes"] if environment["path"] not in sealed else 0,
            )
            for environment in plan["environments"]
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
    missing = " and ".join(dict.fromkeys(model["what"] for model in missing_models(plan, facts)))
    sealed = sealed_paths(facts)
    built = {plan["host"]["tools"]["path"], *(environment["path"] for environment in plan["environments"])}
    needs_index = bool(settings["index_url"]) and not built <= sealed
    wanted = []
    if missing and settings["weights_source"] == "hub":
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
        if url in answers and not answers[url]["ok"]
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


def questions(targets: Sequence[Target], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the module host_facts that `make_plan` and `judge` need answered, in one execution."""
    urls = [settings["hub_endpoint"], *([settings["index_url"]] if settings["index_url"] else [])]
    snapshots = {str(snapshot_of(model)) for target in targets for _part, model in models_of(target.variant)}
    return {
        "paths": [str(PREFIX / "tools"), str(PREFIX / "environments"), str(HUB_CACHE), *sorted(snapshots)],
        "ports": sorted({target.entry["port"] for target in targets}),
        "environments": [str(PREFIX / "tools"), str(PREFIX / "environments")],
        "reachable": urls,
    }


def unit_text(
    recipe: Recipe,
    variant_name: str,
    settings: Mapping[str, Any],
    *,
    environment_path: Path = PREFIX / "environments" / "@environment@",
    release_path: Path | None = None,
) -> str:
    """The unit's text without a host, for people, its variables included.

    Of the settings the first entry counts. Works for models that are not pinned yet. The two folders that only a host
    names are @environment@ and @release@ unless given.
    """
    target = Target(0, settings["recipes"][0], recipe, variant_name)
    unit = _unit(target, environment_path, release_path or PREFIX / "releases" / target.slug / "@release@")
    return unit_file.render_whole(unit)
