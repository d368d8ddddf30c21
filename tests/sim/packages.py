# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""A package index for tests: wheels made here, served over HTTP on loopback in the two forms of listing."""

from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import json
import os
import shutil
import threading
import zipfile
from pathlib import Path
from types import TracebackType

KIND = "application/vnd.pypi.simple.v1+json"


def uv_program() -> str:
    """The uv that tests run; it must be there."""
    found = os.environ.get("UV") or shutil.which("uv")
    assert found, "uv must be installed to run these tests"
    return found


class Index:
    """The index; `url` is what a client is told. Listings are HTML, and JSON for who asks: that states upload times."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.wheels: dict[str, Path] = {}
        self._uploaded: dict[str, str] = {}
        handler = functools.partial(_Handler, directory=str(root))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/simple"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self) -> Index:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.shutdown()
        self.server.server_close()

    def add(
        self,
        name: str,
        version: str,
        requires: str = "",
        code: str = "",
        tag: str = "py3-none-any",
        uploaded: str = "2025-01-01T00:00:00Z",
    ) -> str:
        """Make a wheel with one module that holds its version; return its line for a lock.

        requires: a requirement that its metadata state. code: further lines of the module. tag: what its metadata say
        of the platform. uploaded: when, as the JSON listing says.
        """
        module = name.replace("-", "_")
        info = f"{module}-{version}.dist-info"
        folder = self.root / "simple" / name
        folder.mkdir(parents=True, exist_ok=True)
        wheel = folder / f"{module}-{version}-py3-none-any.whl"
        content = {
            f"{module}.py": f"VERSION = {version!r}\n{code}",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            + (f"Requires-Dist: {requires}\n" if requires else ""),
            f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
        }
        record = "".join(f"{path},{_record_sum(text)},{len(text.encode())}\n" for path, text in content.items())
        content[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
        with zipfile.ZipFile(wheel, "w") as archive:
            for path, text in content.items():
                archive.writestr(path, text)
        self.wheels[name] = wheel
        self._uploaded[wheel.name] = uploaded
        self._list(name, folder)
        return f"{name}=={version} \\\n    --hash=sha256:{_sha256(wheel)}\n"

    def take(self, name: str, folder: Path) -> None:
        """Move the newest wheel of `name` out of the index into `folder`, off both listings."""
        wheel = self.wheels.pop(name)
        shutil.move(wheel, folder)
        self._list(name, wheel.parent)

    def _list(self, name: str, folder: Path) -> None:
        wheels = sorted(folder.glob("*.whl"))
        links = [f'<a href="{wheel.name}#sha256={_sha256(wheel)}">{wheel.name}</a>' for wheel in wheels]
        (folder / "index.html").write_text("<!DOCTYPE html><html><body>" + "\n".join(links) + "</body></html>")
        files = [
            {
                "filename": wheel.name,
                "url": wheel.name,
                "hashes": {"sha256": _sha256(wheel)},
                "size": wheel.stat().st_size,
                "upload-time": self._uploaded[wheel.name],
            }
            for wheel in wheels
        ]
        page = {"meta": {"api-version": "1.1"}, "name": name, "files": files, "versions": []}
        (folder / "index.json").write_text(json.dumps(page))


def _record_sum(text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class _Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        page = Path(self.translate_path(self.path)) / "index.json"
        if not self.path.endswith("/") or KIND not in self.headers.get("Accept", "") or not page.is_file():
            super().do_GET()
            return
        body = page.read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", KIND)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        pass
