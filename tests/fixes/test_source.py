# SPDX-License-Identifier: Apache-2.0
"""Whether the packs fit the sources that they are for. ENPLACE_VLLM_GAUDI_SRC and ENPLACE_VLLM_SRC name checkouts."""

from __future__ import annotations

import os
from pathlib import Path

import fix_engine
import pytest

PACK = fix_engine.load_pack(Path(__file__).resolve().parents[2] / "fixes" / "v0.26.0")
VARIABLES = {"vllm_gaudi": "ENPLACE_VLLM_GAUDI_SRC", "vllm": "ENPLACE_VLLM_SRC"}
FILES = [file for target in PACK.targets for file in target.files]


def source(file: str) -> Path:
    """A file of a checkout; the test is skipped where none is named."""
    variable = VARIABLES[file.split("/")[0]]
    folder = os.environ.get(variable)
    if not folder:
        pytest.skip(f"NOT TESTED: {variable} names no checkout, so nothing is known of {file}")
    return Path(folder) / file


@pytest.mark.parametrize("file", FILES)
def test_the_file_is_the_one_that_the_pack_was_written_for(file: str) -> None:
    assert fix_engine.sha256(source(file).read_bytes()) == PACK.target(file).files[file]


@pytest.mark.parametrize("file", FILES)
def test_all_fixes_together_and_each_alone_give_python(file: str) -> None:
    text = fix_engine.Source(source(file).read_bytes())
    edits = [edit for fix in PACK.fixes for edit in fix.edits if edit.file == file]
    compile(text.edited(edits), file, "exec")
    for name in {edit.fix for edit in edits}:
        compile(text.edited([edit for edit in edits if edit.fix == name]), file, "exec")


@pytest.mark.parametrize("fix", [fix for fix in PACK.fixes if fix.written], ids=lambda fix: fix.name)
def test_every_edit_is_where_it_was_and_none_is_mended_upstream(fix: fix_engine.Fix) -> None:
    sources = {file: fix_engine.Source(source(file).read_bytes()) for file in {edit.file for edit in fix.edits}}
    for edit in fix.edits:
        sources[edit.file].place(edit)
    assert not fix_engine.fixed_upstream(fix, sources)
