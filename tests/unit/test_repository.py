# SPDX-License-Identifier: Apache-2.0
"""What must hold of a fresh clone: links, licences, the built collection, names, and roles that are all alike."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
COLLECTION = ROOT / "collection" / "ansible_collections" / "enplace" / "inference"
ROLES = sorted(path.name for path in (COLLECTION / "roles").iterdir() if path.is_dir())
LINKS = {
    "LICENSES": COLLECTION / "LICENSES",
    "collections": ROOT / "collection",
    "fixes": COLLECTION / "fixes",
    "playbooks": COLLECTION / "playbooks",
    "recipes": COLLECTION / "recipes",
    "roles": COLLECTION / "roles",
}
APACHE = "SPDX-License-Identifier: Apache-2.0"
GPL = "SPDX-License-Identifier: GPL-3.0-or-later"
# No place for a licence in these: data for programs, texts of licences, model weights, and files that are empty.
BARE = re.compile(
    r"(^|/)(LICENSE|LICENSES/.*|uv\.lock|changelog\.yaml|\.gitignore|\.gitattributes)$|\.(json|safetensors|jinja|md|txt|in)$"
)


def tracked(folder: str = ".") -> list[Path]:
    """Files that git tracks or would track, links as they are."""
    argv = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", folder]
    listed = subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted(ROOT / name for name in set(listed.split("\0")) if name and (ROOT / name).exists())


FILES = [path for path in tracked() if not path.is_symlink()]


def text_of(path: Path) -> str:
    """A file's text, or nothing where it is not text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def test_every_link_points_into_the_collection() -> None:
    """The other way round, ansible-galaxy builds a collection without content and says nothing."""
    found = {str(path.relative_to(ROOT)): path for path in tracked() if path.is_symlink()}
    assert set(found) == set(LINKS)
    for name, path in found.items():
        assert not path.readlink().is_absolute()
        assert path.resolve() == LINKS[name]
        assert path.is_dir()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the built collection, by path, with their content."""
    folder = tmp_path_factory.mktemp("built")
    galaxy = Path(sys.executable).with_name("ansible-galaxy")
    argv = [str(galaxy), "collection", "build", str(COLLECTION), "--output-path", str(folder)]
    subprocess.run(argv, check=True, capture_output=True, cwd=folder)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        members = [member for member in tar.getmembers() if not member.isdir()]
        assert all(member.isreg() for member in members)
        return {member.name: tar.extractfile(member).read() for member in members}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "folder", ["roles", "plugins/modules", "plugins/action", "playbooks", "recipes", "engines", "LICENSES"]
)
def test_the_built_collection_has_content(built: dict[str, bytes], folder: str) -> None:
    assert [name for name in built if name.startswith(f"{folder}/")]


def test_the_built_collection_is_the_tree(built: dict[str, bytes]) -> None:
    """No file of the tree is missing, none is another, and nothing that is ignored slipped in."""
    tree = {str(path.relative_to(COLLECTION)): path.read_bytes() for path in tracked(str(COLLECTION))}
    wanted = {name for name in tree if not re.match(r"tests/|galaxy\.yml$|\.gitignore$", name)}
    made = {"MANIFEST.json", "FILES.json"}
    assert set(built) - made == wanted
    assert [name for name in wanted if built[name] != tree[name]] == []


def test_one_version_everywhere(built: dict[str, bytes]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    manifest = json.loads(built["MANIFEST.json"])["collection_info"]
    assert manifest["version"] == project["version"]
    requires = yaml.safe_load((COLLECTION / "meta" / "runtime.yml").read_text(encoding="utf-8"))["requires_ansible"]
    assert f"ansible-core{requires.removesuffix('.0')}" in project["dependencies"]


@pytest.mark.parametrize("name", [str(path.relative_to(ROOT)) for path in FILES if not BARE.search(str(path))])
def test_every_file_names_its_licence(name: str) -> None:
    path = ROOT / name
    text = text_of(path)
    if not text.strip():
        return
    head = "\n".join(text.splitlines()[:8])
    assert APACHE in head or GPL in head
    inside = path.relative_to(COLLECTION).parts if path.is_relative_to(COLLECTION) else ()
    if inside[:2] == ("plugins", "modules"):
        # Ansible demands it of modules.
        assert GPL in head
    if GPL in head:
        assert inside[:1] == ("plugins",)
        assert "GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt" in head


@pytest.mark.parametrize(
    ("name", "first"), [("Apache-2.0.txt", "Apache License"), ("GPL-3.0-or-later.txt", "GNU GENERAL")]
)
def test_the_licences_are_there(name: str, first: str) -> None:
    assert first in (COLLECTION / "LICENSES" / name).read_text(encoding="utf-8")
    assert {path.name for path in (COLLECTION / "LICENSES").iterdir()} == {"Apache-2.0.txt", "GPL-3.0-or-later.txt"}


# In parts, so that this file is none of those that name one.
REGISTRIES = [".".join(parts) for parts in (("pypi", "org"), ("pythonhosted", "org"), ("debian", "org"))]
# A folder right below the root may have a name that is said for another reason.
HERE = [f"{ROOT}/"] if len(ROOT.parts) > 2 else []


@pytest.mark.parametrize("word", [*REGISTRIES, *HERE])
def test_nothing_names_a_registry_or_the_machine_it_was_written_on(word: str) -> None:
    """Where packages come from is the business of whoever runs this; uv's lock has to name it."""
    assert [str(path.relative_to(ROOT)) for path in FILES if path.name != "uv.lock" and word in text_of(path)] == []


@pytest.mark.parametrize("role", ROLES)
def test_every_role_is_like_the_others(role: str) -> None:
    folder = COLLECTION / "roles" / role
    for name in ("README.md", "defaults/main.yml", "meta/argument_specs.yml", "meta/main.yml", "tasks/main.yml"):
        assert (folder / name).is_file(), name
    about = yaml.safe_load((folder / "meta" / "main.yml").read_text(encoding="utf-8"))
    specs = yaml.safe_load((folder / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))["argument_specs"]
    assert about["galaxy_info"]["license"] == "Apache-2.0"
    # Roles are put together by serve alone.
    assert about["dependencies"] == []
    assert set(specs["main"]) >= {"short_description", "options"}
    assert (ROOT / "molecule" / role / "molecule.yml").is_file()


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Every mapping in a document, at any depth."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from nodes(item)


PLAYS = [path for path in FILES if path.suffix == ".yml" and {"roles", "playbooks"} & set(path.parts)]


def test_roles_and_modules_are_named_in_full() -> None:
    """ansible-lint sees to modules; a short role name works here, and breaks once the collection is installed."""
    named = []
    for path in [*PLAYS, ROOT / "site.yml", *(ROOT / "molecule").glob("*/*.yml")]:
        for node in nodes(yaml.safe_load(path.read_text(encoding="utf-8"))):
            for key in ("ansible.builtin.import_role", "ansible.builtin.include_role"):
                if key in node:
                    named.append((path, node[key]["name"]))
            if isinstance(node.get("roles"), list):
                named += [(path, role if isinstance(role, str) else role["role"]) for role in node["roles"]]
            assert not {"import_role", "include_role"} & set(node), path
    assert len(named) > len(ROLES)
    assert [name for name in named if not name[1].startswith("enplace.inference.")] == []


def test_the_settings_are_read_from_the_checkout() -> None:
    """Where ansible.cfg is not read (a folder that everybody may write to), all else would fail in another way."""
    argv = [str(Path(sys.executable).with_name("ansible-config")), "dump", "--only-changed", "--format", "json"]
    dumped = json.loads(subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    settings = {entry["name"]: entry["value"] for entry in dumped if "name" in entry}
    assert settings["CONFIG_FILE"] == str(ROOT / "ansible.cfg")
    assert settings["INJECT_FACTS_AS_VARS"] is False
    assert settings["COLLECTIONS_PATHS"][0] == str(ROOT / "collection")
