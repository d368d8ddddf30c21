# SPDX-License-Identifier: Apache-2.0
"""The code that fixes install, without the engine that they correct, and the pack as it is shipped."""

from __future__ import annotations

import importlib
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import fix_engine
import pytest
from hypothesis import given
from hypothesis import strategies as st

PACK = Path(__file__).resolve().parents[2] / "fixes" / "v0.26.0"


@pytest.fixture(autouse=True)
def on_path() -> Iterator[None]:
    sys.path.insert(0, str(PACK))
    yield
    sys.path.remove(str(PACK))


def module(name: str) -> ModuleType:
    return importlib.import_module(f"enplace_gaudi.{name}")


class Batch:
    """As much of the engine's batch as the fixes look at."""

    def __init__(self, names: list[str], computed: list[int], prompts: list[int]) -> None:
        self.req_ids, self.num_computed_tokens_cpu, self.num_prompt_tokens = names, computed, prompts
        self.swapped = 0

    @property
    def num_reqs(self) -> int:
        return len(self.req_ids)

    def swap_states(self, one: int, other: int) -> None:
        self.swapped += 1
        rows: list[list[Any]] = [self.req_ids, self.num_computed_tokens_cpu, self.num_prompt_tokens]
        for row in rows:
            row[one], row[other] = row[other], row[one]


def runner_of(batch: Batch) -> SimpleNamespace:
    def is_prompt(place: int, output: Any) -> bool:
        return batch.num_computed_tokens_cpu[place] < batch.num_prompt_tokens[place]

    return SimpleNamespace(input_batch=batch, _is_prompt=is_prompt)


def test_values_go_to_the_first_row_of_their_index_and_not_to_padding() -> None:
    assert module("rows").by_row({0: "a", 3: "d"}, [3, 1, 0, 3, 3]) == {0: "d", 2: "a"}


@given(st.permutations(list(range(7))))
def test_swaps_bring_any_order_into_any_other(wanted: list[int]) -> None:
    sys.path.insert(0, str(PACK))
    order = list(range(7))
    for one, other in module("rows").swaps(order, wanted):
        order[one], order[other] = order[other], order[one]
    assert order == wanted


def test_prompts_run_in_the_order_of_the_scheduler_and_decodes_stay_first() -> None:
    batch = Batch(["D", "B", "C", "A"], [9, 128, 0, 0], [5, 300, 300, 300])
    output = SimpleNamespace(num_scheduled_tokens={"D": 1, "A": 128, "B": 40, "C": 40})
    module("rows").put_prompts_in_order(runner_of(batch), output)
    assert batch.req_ids == ["D", "A", "B", "C"]
    assert batch.num_computed_tokens_cpu == [9, 0, 128, 0]


def test_prompts_without_context_are_not_moved() -> None:
    batch = Batch(["B", "A"], [0, 0], [300, 300])
    module("rows").put_prompts_in_order(runner_of(batch), SimpleNamespace(num_scheduled_tokens={"A": 1, "B": 1}))
    assert batch.swapped == 0


@pytest.mark.parametrize(
    ("computed", "prompt", "outputs", "recomputed"),
    [(0, 5, 0, True), (0, 5, 3, True), (4, 5, 3, True), (7, 5, 3, False), (4, 5, 0, False)],
)
def test_a_request_that_resumes_is_told_from_one_that_missed_a_step(
    computed: int, prompt: int, outputs: int, recomputed: bool
) -> None:
    request = SimpleNamespace(
        num_computed_tokens=computed, prompt_token_ids=[1] * prompt, output_token_ids=[1] * outputs
    )
    assert module("rows").is_recomputed(request) is recomputed


def test_what_was_sampled_after_a_part_of_a_prompt_is_dropped() -> None:
    batch = Batch(["D", "A", "B"], [9, 0, 128], [5, 300, 300])
    tokens = [[1], [2], [3]]
    output = SimpleNamespace(num_scheduled_tokens={"D": 1, "A": 128, "B": 172})
    module("rows").drop_partial(runner_of(batch), output, tokens)
    assert tokens == [[1], [], [3]]


def group(block: int, *layers: str) -> SimpleNamespace:
    return SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=block, head_size=1), layer_names=list(layers))


@pytest.mark.parametrize(("block", "spare"), [(384, 192), (128, 64), (1152, 576)])
def test_padding_writes_behind_the_blocks_of_all_requests(block: int, spare: int) -> None:
    rows = {"a": (spare + 1) * 128}
    assert module("pads").kernel_blocks(64, [group(block, "a", "shared")], 128, rows) == spare


def test_a_tensor_without_a_spare_block_and_a_block_that_does_not_divide_are_refused() -> None:
    with pytest.raises(RuntimeError, match="a has 24576 rows, expected 24704"):
        module("pads").kernel_blocks(64, [group(384, "a")], 128, {"a": 192 * 128})
    with pytest.raises(RuntimeError, match="not a whole number"):
        module("pads").kernel_blocks(64, [group(400, "a")], 128, {})


def test_only_a_hybrid_has_blocks_of_several_kernel_blocks() -> None:
    state = SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=384), layer_names=["s"])
    config = SimpleNamespace(kv_cache_groups=[state, group(384, "a")])
    caches = {"a": ([0] * (193 * 128), None), "s": ([0], None)}
    for layers, block in ((0, 64), (36, 192)):
        runner = SimpleNamespace(num_mamba_like_layers=layers, attn_block_size=128)
        assert module("pads").pad_block(runner, config, 64, caches) == block


def params(**more: Any) -> SimpleNamespace:
    plain = {"min_tokens": 0, "bad_words_token_ids": None, "frequency_penalty": 0.0, "presence_penalty": 0.0}
    return SimpleNamespace(**{**plain, "repetition_penalty": 1.0, "logit_bias": None, "min_p": 0.0, **more})


class Sampled(list[int]):
    """A tensor, as far as it is asked."""

    def tolist(self) -> list[int]:
        return list(self)


def test_generated_tokens_are_known_to_the_sampler_under_async_scheduling() -> None:
    outputs = module("outputs")
    a = SimpleNamespace(sampling_params=params(min_tokens=4), output_token_ids=[])
    b = SimpleNamespace(sampling_params=params(), output_token_ids=[])
    batch = SimpleNamespace(prev_sampled_token_ids=None, prev_req_id_to_index=None)
    runner = SimpleNamespace(use_async_scheduling=True, requests={"a": a, "b": b}, input_batch=batch)
    rows = [("b", b.output_token_ids), ("a", a.output_token_ids)]
    assert outputs.with_generated(runner, rows) == [("b", []), ("a", [])]
    batch.prev_sampled_token_ids, batch.prev_req_id_to_index = Sampled([7, 8]), {"a": 1, "b": 0}
    for _ in range(2):  # prompts and decodes of one step are sampled in two calls
        assert outputs.with_generated(runner, rows) == [("b", [7]), ("a", [8])]
    batch.prev_sampled_token_ids = Sampled([9, 10])
    assert dict(outputs.with_generated(runner, rows))["a"] == [8, 10]
    a.output_token_ids = [8, 10, 11]  # resumed: what the scheduler says counts
    batch.prev_sampled_token_ids, batch.prev_req_id_to_index = Sampled([12]), {"b": 0}
    assert dict(outputs.with_generated(runner, [("a", a.output_token_ids)]))["a"] == [8, 10, 11]
    assert a.output_token_ids == [8, 10, 11]


def test_nothing_is_fetched_where_no_request_looks_at_what_was_generated() -> None:
    a = SimpleNamespace(sampling_params=params(logit_bias={1: 2.0}), output_token_ids=[])
    batch = SimpleNamespace(prev_sampled_token_ids=object(), prev_req_id_to_index={"a": 0})
    runner = SimpleNamespace(use_async_scheduling=True, requests={"a": a}, input_batch=batch)
    assert module("outputs").with_generated(runner, [("a", [])]) == [("a", [])]


class Processor:
    """Keeps parameters by row, as the engine's do."""

    def __init__(self) -> None:
        self.rows: dict[int, Any] = {}
        self.calls = 0

    def update_state(self, update: Any) -> None:
        self.calls += 1
        assert update
        for row in update.removed:
            self.rows.pop(row, None)
        for row, wanted, _, _ in update.added:
            self.rows[row] = wanted.logit_bias


Processor.__module__ = "vllm.v1.sample.logits_processor.builtin"


def test_processors_know_the_rows_of_each_call_and_of_no_other() -> None:
    logits_rows = module("logits_rows")
    chance = random.Random(1)
    wanted = {name: ({n: 1.0} if n % 2 else None) for n, name in enumerate("abcdef")}
    requests = {
        name: SimpleNamespace(sampling_params=params(logit_bias=bias), prompt_token_ids=[])
        for name, bias in wanted.items()
    }
    processor = Processor()
    batch = SimpleNamespace(
        enplace_requests=requests, enplace_processor_rows=set(), logitsprocs=SimpleNamespace(all=[processor])
    )
    for _ in range(50):
        names = chance.sample("abcdef", chance.randint(1, 6))
        padded = names + [names[0]] * chance.randint(0, 2)
        assert logits_rows.for_rows(batch, [(name, []) for name in padded]) is batch.logitsprocs
        held = {row: bias for row, bias in processor.rows.items() if bias}
        assert held == {row: wanted[name] for row, name in enumerate(names) if wanted[name]}


def test_processors_are_left_alone_where_nobody_uses_them() -> None:
    processor = Processor()
    requests = {"a": SimpleNamespace(sampling_params=params(), prompt_token_ids=[])}
    batch = SimpleNamespace(
        enplace_requests=requests, enplace_processor_rows=set(), logitsprocs=SimpleNamespace(all=[processor])
    )
    module("logits_rows").for_rows(batch, [("a", [])])
    assert processor.calls == 0


class Tokenizer:
    """Refuses what it does not know, as the real ones do."""

    def __len__(self) -> int:
        return 3

    def decode(self, ids: list[int]) -> str:
        if any(not 0 <= number < 3 for number in ids):
            raise OverflowError("out of range integral type conversion attempted")
        return "".join("abc"[number] for number in ids)


def test_unknown_ids_get_empty_texts_and_the_others_keep_their_places(caplog: pytest.LogCaptureFixture) -> None:
    guard = module("id_guard")
    guard._last[0] = float("-inf")

    def plain(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
        return [tokenizer.decode([number]) for number in ids]

    assert guard.convert(Tokenizer(), [0, -1, 2, 2**40, 0], plain) == ["a", "", "c", "", "a"]
    assert guard.convert(Tokenizer(), [0, 1, 2], plain) is None
    assert guard.known(Tokenizer(), [0, -2117107376, 1]) == [0, 1]
    guard.convert(Tokenizer(), [-1], plain)
    # Said once, and again after a while.
    assert sum("outside the vocabulary" in record.message for record in caplog.records) == 1
    guard._last[0] -= guard.PAUSE_S
    guard.convert(Tokenizer(), [-1], plain)
    assert sum("outside the vocabulary" in record.message for record in caplog.records) == 2


def test_a_rank_that_failed_leaves_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = module("ranks")

    class Left(BaseException):
        pass

    def leave(status: int) -> None:
        raise Left(status)

    monkeypatch.setattr(ranks.os, "_exit", leave)
    monkeypatch.setattr(ranks.logging, "shutdown", lambda: None)
    with pytest.raises(Left) as left:
        ranks.end(1)
    assert left.value.args == (1,)


# The pack


def test_every_written_fix_is_of_the_pack_and_brings_its_modules() -> None:
    pack = fix_engine.load_pack(PACK)
    listed = {fix.name for fix in pack.fixes}
    assert {path.stem for path in PACK.glob("*.json")} - {"pack"} <= listed
    for fix in pack.fixes:
        for edit in fix.edits:
            assert len(pack.target(edit.file).files[edit.file]) == 64
            for name in re.findall(r"enplace_gaudi\.(\w+)", "\n".join(edit.code)):
                assert f"{name}.py" in fix.modules, (fix.name, name)


def test_every_module_that_is_shipped_is_installed_by_a_fix() -> None:
    pack = fix_engine.load_pack(PACK)
    used = {name for fix in pack.fixes for name in fix.modules} | {"__init__.py"}
    assert {path.name for path in (PACK / "enplace_gaudi").glob("*.py")} == used
