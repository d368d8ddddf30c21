# SPDX-License-Identifier: Apache-2.0
"""Weights against their manifest. Client and hub are stand-ins here; the real client and the simulated hub are in the
integration tests.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.enplace.inference.plugins.module_utils import weights
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure, git_blob_sha1, sha256_files
from ansible_collections.enplace.inference.plugins.modules.weights import diff_of

REVISION = "1" * 40
CONTENT = {"config.json": b'{"x": 1}', "model.safetensors": b"w" * 5000, "sub/tokenizer.json": b"t" * 300}
LARGE = "model.safetensors"

# What `hf download REPO FILES... --revision R --cache-dir C` does to the cache, from a folder in place of a hub. It
# writes down how it was started.
STAND_IN = """#!{python}
import hashlib, json, os, pathlib, sys
hub = pathlib.Path({root!r})
argv = sys.argv[1:]
options = {{argv[i]: argv[i + 1] for i in range(len(argv)) if argv[i] in ("--revision", "--cache-dir")}}
names = argv[2 : argv.index("--revision")]
(hub / "calls.jsonl").open("a").write(json.dumps({{"argv": argv, "env": dict(os.environ)}}) + "\\n")
if (hub / "fails").exists():
    sys.exit((hub / "fails").read_text())
repository = pathlib.Path(options["--cache-dir"], "models--" + argv[1].replace("/", "--"))
for name in names:
    source = hub / "files" / name
    if not source.exists():
        continue
    content = source.read_bytes()
    if (hub / "etags" / name).exists():
        etag = (hub / "etags" / name).read_text()
    elif name.endswith(".safetensors"):
        etag = hashlib.sha256(content).hexdigest()
    else:
        etag = hashlib.sha1(b"blob %d\\0" % len(content) + content).hexdigest()
    blob = repository / "blobs" / etag
    blob.parent.mkdir(parents=True, exist_ok=True)
    if not blob.exists():
        blob.write_bytes(content)
    link = repository / "snapshots" / options["--revision"] / name
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(os.path.relpath(blob, link.parent))
"""


class Questions(http.server.BaseHTTPRequestHandler):
    """A hub that has every file of the manifest, whatever its folder has. It gives nothing."""

    def do_GET(self) -> None:
        body = json.dumps({"gated": False, "siblings": [{"rfilename": name} for name in CONTENT]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def questions() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Questions) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class Hub:
    """A folder in place of a hub, and a host's cache."""

    def __init__(self, tmp_path: Path, endpoint: str) -> None:
        self.root = tmp_path / "hub"
        self.cache = tmp_path / "cache"
        for name, content in CONTENT.items():
            self.put(name, content)
        self.hf = tmp_path / "hf"
        self.hf.write_text(STAND_IN.format(python=sys.executable, root=str(self.root)))
        self.hf.chmod(0o755)
        self.request = weights.Request(cache=str(self.cache), hf=str(self.hf), endpoint=endpoint)

    def put(self, name: str, content: bytes) -> None:
        path = self.root / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def lie(self, name: str, content: bytes) -> None:
        """Serve other content under the ETag of the right one, as a broken mirror or a flipped bit does."""
        etag = self.root / "etags" / name
        etag.parent.mkdir(parents=True, exist_ok=True)
        right = self.root / "files" / name
        etag.write_text(hashlib.sha256(right.read_bytes()).hexdigest() if name == LARGE else git_blob_sha1(str(right)))
        self.put(name, content)

    def ensure(self, models: list[weights.Model] | None = None, **options: Any) -> dict[str, Any]:
        return weights.ensure(self.request, models or [model()], **options)

    def calls(self) -> list[dict[str, Any]]:
        path = self.root / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def file(self, name: str) -> Path:
        return Path(weights.snapshot_path(str(self.cache), model())) / name


@pytest.fixture
def hub(tmp_path: Path, questions: str) -> Hub:
    return Hub(tmp_path, questions)


def manifest(**changed: bytes) -> list[dict[str, Any]]:
    content = {name: changed.get(name.partition(".")[0], data) for name, data in CONTENT.items()}
    files = [
        {"path": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in content.items()
    ]
    return [{"repo": "enplace/tiny", "revision": REVISION, "files": files}]


def model(**changed: bytes) -> weights.Model:
    return weights.parse_models(manifest(**changed))[0]


def tree(path: Path) -> list[str]:
    return sorted(str(entry.relative_to(path)) for entry in path.rglob("*")) if path.exists() else []


def test_a_first_run_downloads_and_a_second_one_only_looks(hub: Hub) -> None:
    result = hub.ensure()
    total = sum(len(data) for data in CONTENT.values())
    assert result["changed"]
    assert result["downloaded_bytes"] == result["missing_bytes"] == total
    (entry,) = result["models"]
    assert entry["snapshot"] == str(hub.cache / "models--enplace--tiny" / "snapshots" / REVISION)
    assert [item["path"] for item in entry["missing"]] == list(CONTENT)
    (diff,) = diff_of([model()], result)
    assert diff["before"] == ""
    assert diff["after"].count("\n") == len(CONTENT)
    (call,) = hub.calls()
    assert call["argv"][:2] == ["download", "enplace/tiny"]
    assert call["argv"][2:] == [*CONTENT, "--revision", REVISION, "--cache-dir", str(hub.cache), "--quiet"]
    assert call["env"]["HF_HUB_DISABLE_TELEMETRY"] == "1"
    assert not Path(call["env"]["HF_HOME"]).exists()
    before = tree(hub.cache)
    again = hub.ensure()
    assert not again["changed"]
    assert again["models"][0]["missing"] == []
    assert diff_of([model()], again) == []
    assert len(hub.calls()) == 1
    assert tree(hub.cache) == before


def test_check_mode_lists_and_leaves_alone(hub: Hub) -> None:
    result = hub.ensure(check_mode=True)
    assert result["changed"]
    assert result["downloaded_bytes"] == 0
    assert result["missing_bytes"] == sum(len(data) for data in CONTENT.values())
    assert not hub.cache.exists()
    assert hub.calls() == []
    hub.ensure()
    assert not hub.ensure(check_mode=True)["changed"]


def test_only_what_is_missing_is_downloaded(hub: Hub) -> None:
    hub.ensure()
    hub.file("config.json").unlink()
    assert [item["path"] for item in hub.ensure()["models"][0]["missing"]] == ["config.json"]
    assert hub.calls()[1]["argv"][2:4] == ["config.json", "--revision"]


def test_a_verified_file_is_not_hashed_again_unless_deep(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.ensure()
    asked: list[list[str]] = []
    real = sha256_files

    def spy(paths: Any) -> dict[str, str]:
        asked.append(sorted(paths))
        return real(asked[-1])

    monkeypatch.setattr(weights, "sha256_files", spy)
    hub.ensure()
    assert asked == [[]]
    os.utime(hub.file(LARGE), (1, 1))
    hub.ensure()
    assert asked[1] == [str(hub.file(LARGE))]
    hub.ensure(deep=True)
    assert len(asked[2]) == len(CONTENT)
    hub.ensure()
    assert asked[3] == []


def test_a_cache_filled_by_another_tool_is_taken_over(hub: Hub) -> None:
    hub.ensure()
    Path(weights.state_path(str(hub.cache), model())).unlink()
    assert not hub.ensure()["changed"]
    assert len(hub.calls()) == 1
    assert Path(weights.state_path(str(hub.cache), model())).exists()


@pytest.mark.parametrize("deep", [False, True])
def test_a_flipped_byte_is_found_named_and_gone(hub: Hub, deep: bool) -> None:
    hub.ensure()
    target = hub.file(LARGE)
    status = target.stat()
    with target.open("r+b") as stream:
        stream.seek(2000)
        stream.write(b"W")
    if deep:
        # Time of modification put back: only hashing finds it now.
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert not hub.ensure()["changed"]
    found = hashlib.sha256(target.read_bytes()).hexdigest()
    for check_mode in (True, False):
        assert target.exists()
        with pytest.raises(Failure, match="changed after it had been verified") as caught:
            hub.ensure(deep=deep, check_mode=check_mode)
        assert str(target) in caught.value.where
        assert hashlib.sha256(CONTENT[LARGE]).hexdigest() in caught.value.expected
        assert found in caught.value.found
    assert not target.is_symlink()
    assert hub.ensure()["downloaded_bytes"] == len(CONTENT[LARGE])
    assert target.read_bytes() == CONTENT[LARGE]


def test_what_a_power_cut_left_is_downloaded_again(hub: Hub) -> None:
    hub.ensure()
    Path(weights.state_path(str(hub.cache), model())).unlink()
    os.truncate(hub.file(LARGE), 100)
    result = hub.ensure()
    assert [item["path"] for item in result["models"][0]["missing"]] == [LARGE]
    assert hub.file(LARGE).read_bytes() == CONTENT[LARGE]


@pytest.mark.parametrize("name", [LARGE, "config.json"])
def test_wrong_content_from_the_hub_is_refused_and_removed(hub: Hub, name: str) -> None:
    right = CONTENT[name]
    hub.lie(name, b"?" + right[1:])
    with pytest.raises(Failure, match="not the one in the recipe's manifest") as caught:
        hub.ensure()
    assert str(hub.file(name)) in caught.value.where
    assert hashlib.sha256(right).hexdigest() in caught.value.expected
    assert hashlib.sha256(b"?" + right[1:]).hexdigest() in caught.value.found
    assert not hub.file(name).is_symlink()
    hub.put(name, right)
    result = hub.ensure()
    assert [item["path"] for item in result["models"][0]["missing"]] == [name]
    assert hub.file(name).read_bytes() == right


@pytest.mark.parametrize(("changed", "field"), [({"model": b"v" * 5000}, "sha256"), ({"config": b"{}"}, "bytes")])
def test_a_wrong_manifest_is_told_apart_from_a_wrong_file(hub: Hub, changed: dict[str, bytes], field: str) -> None:
    wrong = model(**changed)
    (key,) = changed
    name = next(path for path in CONTENT if path.startswith(key))
    for _run in range(2):
        with pytest.raises(Failure, match="the recipe's manifest does not fit") as caught:
            hub.ensure([wrong])
        assert f"weights.files, entry {name}, {field}" in caught.value.where
        assert hashlib.sha256(CONTENT[name]).hexdigest() in caught.value.found
        assert hub.file(name).read_bytes() == CONTENT[name], "the hub's file is not to blame"
    assert len(hub.calls()) == 1, "what is known to be wrong is not downloaded again"


@pytest.mark.parametrize("changed", [{"model": b"v" * 5000}, {"config": b"{}"}])
def test_a_wrong_manifest_does_not_make_a_host_forget(hub: Hub, changed: dict[str, bytes]) -> None:
    hub.ensure()
    records = {path: path.read_bytes() for path in (hub.cache / weights.VERIFIED_NAME).iterdir()}
    with pytest.raises(Failure, match="the recipe's manifest does not fit"):
        hub.ensure([model(**changed)])
    assert {path: path.read_bytes() for path in (hub.cache / weights.VERIFIED_NAME).iterdir()} == records
    assert records


def test_a_file_the_repository_does_not_have(hub: Hub) -> None:
    (hub.root / "files" / "config.json").unlink()
    with pytest.raises(Failure, match="yet a file is missing") as caught:
        hub.ensure()
    assert "config.json" in caught.value.where


def test_a_link_out_of_the_cache_is_not_followed_when_removing(hub: Hub, tmp_path: Path) -> None:
    hub.ensure()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"precious")
    hub.file(LARGE).unlink()
    hub.file(LARGE).symlink_to(elsewhere)
    with pytest.raises(Failure, match="changed after it had been verified"):
        hub.ensure()
    assert elsewhere.read_bytes() == b"precious"
    assert hub.ensure()["changed"]


def test_files_beside_the_manifest_are_reported(hub: Hub) -> None:
    hub.ensure()
    hub.file("notes.txt").write_text("x")
    assert hub.ensure()["models"][0]["extra"] == ["notes.txt"]


def test_a_token_reaches_the_client_by_its_environment_only(hub: Hub, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("hf_secret\n")
    secret.chmod(0o600)
    hub.request = weights.Request(**{**vars(hub.request), "token_file": str(secret)})
    (hub.root / "fails").write_text("401 Client Error for token hf_secret")
    with pytest.raises(Failure, match="could not be downloaded") as caught:
        hub.ensure()
    assert "hf_secret" not in str(caught.value)
    assert "enplace_hub_token_file" in caught.value.todo
    (call,) = hub.calls()
    assert call["env"]["HF_TOKEN"] == "hf_secret"
    assert "hf_secret" not in json.dumps(call["argv"])


@pytest.mark.parametrize("content", [None, "", "two words"])
def test_a_token_file_that_holds_none_is_refused(hub: Hub, tmp_path: Path, content: str | None) -> None:
    secret = tmp_path / "token"
    if content is not None:
        secret.write_text(content)
        secret.chmod(0o600)
    hub.request = weights.Request(**{**vars(hub.request), "token_file": str(secret)})
    with pytest.raises(Failure, match="token cannot be read") as caught:
        hub.ensure()
    assert caught.value.where == f"{secret} (enplace_hub_token_file)"
    assert hub.calls() == []


@pytest.mark.parametrize(
    ("output", "what", "todo"),
    [
        ("OSError: [Errno 28] No space left on device", "disk is full", "whole files are kept"),
        ("Error: Access denied. Model 'a/b' requires approval.", "could not be downloaded", "accept the model's terms"),
        ("Error: 403 Client Error: Forbidden", "could not be downloaded", "accept the model's terms"),
        ("Error: Revision not found in model 'a/b'.", "could not be downloaded", "correct the revision"),
        ("Error: Model 'a/b' not found.\nmake sure your token", "could not be downloaded", "correct the repository"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED]", "could not be downloaded", "enplace_ca_bundle"),
        ("Error: Local entry not found. [Errno -2] Name or service", "could not be downloaded", "not reach the hub"),
        ("PermissionError: [Errno 13] Permission denied: '/x'", "could not be downloaded", "cannot write"),
        ("something new", "could not be downloaded", "read the output"),
    ],
)
def test_a_failed_download_says_what_to_do(hub: Hub, output: str, what: str, todo: str) -> None:
    (hub.root / "fails").write_text(output)
    with pytest.raises(Failure, match=what) as caught:
        hub.ensure()
    assert todo in caught.value.todo
    assert output in caught.value.detail


def test_too_small_a_disk_is_refused_before_the_download(hub: Hub) -> None:
    # A sparse file as a killed download leaves it: hf never goes on with it, so it saves nothing.
    left = hub.cache / "blobs" / "x.incomplete"
    left.parent.mkdir(parents=True)
    with left.open("wb") as stream:
        stream.truncate(10**12)
    huge = manifest()
    huge[0]["files"][1]["bytes"] = 10**17
    with pytest.raises(Failure, match="disk is too small") as caught:
        hub.ensure(weights.parse_models(huge))
    assert caught.value.expected.startswith("100000000.0 GB free")
    assert hub.calls() == []


def test_an_unknown_user_is_refused(hub: Hub) -> None:
    hub.request = weights.Request(**{**vars(hub.request), "user": "no-such-user"})
    with pytest.raises(Failure, match="no such user"):
        hub.ensure()
    assert not hub.cache.exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("repo", "tiny"),
        ("repo", "../x/y"),
        ("repo", "a/b/c"),
        ("revision", "main"),
        ("revision", "1" * 39),
        ("files[0].path", "../outside"),
        ("files[0].path", "/etc/passwd"),
        ("files[0].path", "a//b"),
        ("files[0].path", "--token"),
        ("files[0].path", LARGE),
        ("files[0].sha256", "A" * 64),
        ("files[0].bytes", -1),
        ("files", []),
    ],
)
def test_a_manifest_that_pins_nothing_or_leads_out_is_refused(field: str, value: object) -> None:
    models = manifest()
    matched = re.fullmatch(r"files\[0\]\.(\w+)", field)
    if matched:
        models[0]["files"][0][matched.group(1)] = value
    else:
        models[0][field] = value
    with pytest.raises(Failure, match="manifest of the weights is not valid") as caught:
        weights.parse_models(models)
    assert caught.value.where.startswith("models[0]." + field.partition("[")[0])
