# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of the simulated hub: ranges, revisions, listings, faults."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.hub import hub

SIZE = 100


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=0-99", (0, 100)),
        ("bytes=10-19", (10, 20)),
        ("bytes=10-", (10, 100)),
        ("bytes=99-", (99, 100)),
        ("bytes=90-1000", (90, 100)),
        ("bytes=-1", (99, 100)),
        ("bytes=-100", (0, 100)),
        ("bytes=-1000", (0, 100)),
        ("bytes= 5-6 ", (5, 7)),
    ],
)
def test_a_range_is_first_and_end(header: str, expected: tuple[int, int]) -> None:
    assert hub.parse_range(header, SIZE) == expected


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "bytes",
        "bytes=",
        "bytes=-",
        "bytes=5",
        "bytes=9-3",
        "bytes=a-b",
        "items=0-1",
        "bytes=0-1,5-6",
        "bytes=٣-",
    ],
)
def test_what_is_no_single_range_is_ignored(header: str | None) -> None:
    assert hub.parse_range(header, SIZE) is None


@pytest.mark.parametrize(
    ("header", "size"), [("bytes=100-", 100), ("bytes=200-300", 100), ("bytes=-0", 100), ("bytes=0-", 0)]
)
def test_a_range_that_no_byte_satisfies_is_refused(header: str, size: int) -> None:
    with pytest.raises(ValueError, match="no byte of"):
        hub.parse_range(header, size)


@given(st.binary(min_size=1, max_size=50), st.integers(0, 60), st.integers(0, 60))
def test_the_parts_of_a_range_are_those_of_the_content(content: bytes, first: int, last: int) -> None:
    try:
        part = hub.parse_range(f"bytes={first}-{last}", len(content))
    except ValueError:
        assert content[first : last + 1] == b""
        return
    if last < first:
        assert part is None
        return
    assert part is not None
    assert content[slice(*part)] == content[first : last + 1]


def repository(folder: Path, **files: str) -> Path:
    made = folder / "org" / "model"
    for path, content in files.items():
        target = made / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")
    return made


def test_the_revision_is_that_of_the_content(tmp_path: Path) -> None:
    def revision(name: str, **files: str) -> str:
        return hub.load_repository(repository(tmp_path / name, **files)).revision

    same = {revision("a", x="1", y="2"), revision("b", y="2", x="1")}
    others = [revision("c", x="2", y="1"), revision("d", x="1", z="2"), revision("e", x="12"), revision("f", x="1")]
    assert len(same) == 1
    assert len({*same, *others}) == 5
    assert all(len(value) == 40 and set(value) <= set("0123456789abcdef") for value in others)


def test_a_recorded_revision_that_disagrees_is_an_error_that_names_both(tmp_path: Path) -> None:
    folder = repository(tmp_path, x="1")
    found = hub.load_repository(folder).revision
    metadata = tmp_path / "org" / "model.json"
    metadata.write_text(json.dumps({"revision": found}), encoding="utf-8")
    assert hub.load_repository(folder).revision == found
    (folder / "x").write_text("2", encoding="utf-8")
    with pytest.raises(hub.HubError) as error:
        hub.load_repository(folder)
    assert found in str(error.value)
    assert hub.revision_of(hub.load_repository(repository(tmp_path / "other", x="2")).files.values()) in str(
        error.value
    )


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "expected a JSON object"),
        ("[]", "expected a JSON object"),
        ('{"revison": "x"}', "revision, gated, token"),
        ('{"gated": "yes"}', "field gated: expected a bool"),
    ],
)
def test_metadata_that_is_not_understood_is_an_error(tmp_path: Path, text: str, part: str) -> None:
    folder = repository(tmp_path, x="1")
    (tmp_path / "org" / "model.json").write_text(text, encoding="utf-8")
    with pytest.raises(hub.HubError, match=part):
        hub.load_repository(folder)


def test_a_link_is_never_served(tmp_path: Path) -> None:
    folder = repository(tmp_path, x="1")
    (folder / "secret").symlink_to("/etc/passwd")
    with pytest.raises(hub.HubError, match="secret: expected plain files and folders, found a link"):
        hub.load(tmp_path)


@pytest.mark.parametrize("name", ["an org/model", "-org/model", "org/mödel"])
def test_a_name_that_no_client_can_ask_for_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / "x").write_text("1", encoding="utf-8")
    with pytest.raises(hub.HubError, match="expected names of letters"):
        hub.load(tmp_path)


def test_object_ids_are_those_of_git(tmp_path: Path) -> None:
    folder = repository(tmp_path, **{"config.json": "{}", "model.safetensors": "weights"})
    files = hub.load_repository(folder).files

    def git(content: bytes) -> str:
        argv = ["git", "hash-object", "--stdin"]
        return (
            subprocess.run(argv, input=content, capture_output=True, check=True, cwd=tmp_path).stdout.decode().strip()
        )

    assert files["config.json"].etag == files["config.json"].oid == git(b"{}")
    large = files["model.safetensors"]
    sha256 = hashlib.sha256(b"weights").hexdigest()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize 7\n".encode()
    assert (large.etag, large.oid, large.pointer_size) == (sha256, git(pointer), len(pointer))


def test_a_tree_lists_files_and_folders(tmp_path: Path) -> None:
    loaded = hub.load_repository(repository(tmp_path, **{"a/b/c": "1", "a/d": "2", "e.bin": "3", "ab/f": "4"}))

    def listed(folder: str, recursive: bool) -> list[str]:
        return [f"{entry['type'][0]} {entry['path']}" for entry in hub.tree(loaded, folder, recursive)]

    assert listed("", True) == ["d a", "d a/b", "f a/b/c", "f a/d", "d ab", "f ab/f", "f e.bin"]
    assert listed("", False) == ["d a", "d ab", "f e.bin"]
    assert listed("a", False) == ["d a/b", "f a/d"]
    assert listed("a/b", True) == ["f a/b/c"]
    assert listed("nothing", True) == []
    assert [entry["lfs"]["size"] for entry in hub.tree(loaded) if "lfs" in entry] == [1]


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"path": "", "do": "cut"}, "field path"),
        ({"path": "*", "do": "explode"}, "field do: expected status, cut, stall, flip or slow, found 'explode'"),
        ({"path": "*", "do": "cut", "method": "PUT"}, "field method"),
        ({"path": "*", "do": "cut", "times": 0}, "field times"),
        ({"path": "*", "do": "status", "status": 200}, "field status"),
        ({"path": "*", "do": "cut", "after": -1}, "field after"),
        ({"path": "*", "do": "stall", "seconds": "1"}, "field seconds"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(fields: dict[str, object], part: str) -> None:
    with pytest.raises(hub.HubError, match=part):
        hub.Fault(**fields)  # type: ignore[arg-type]


def test_a_fault_counts_the_requests_that_it_fits() -> None:
    with hub.Hub({}, quiet=True) as server:
        server.add_fault(hub.Fault("/a/*", "status", times=2))
        server.add_fault(hub.Fault("/a/b", "flip"))
        taken = [server.take_fault("GET", path) for path in ("/b", "/a/b", "/a/c", "/a/b", "/a/b")]
        assert [fault and fault.do for fault in taken] == [None, "status", "status", "flip", None]
        server.add_fault(hub.Fault("/a/b", "cut"))
        assert server.take_fault("HEAD", "/a/b") is None
        assert len(server.faults()) == 1
        server.clear_faults()
        assert server.take_fault("GET", "/a/b") is None
