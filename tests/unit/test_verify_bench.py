# SPDX-License-Identifier: Apache-2.0
"""Figures are what `vllm bench serve` measured, or absent with a reason; what speaks against them is said.

The tool is simulated: it tells a server of the test what it was asked and writes what that answers, made of results
that the real one wrote (tests/unit/bench). Its counters are those of the engine.
"""

from __future__ import annotations

import http.server
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure
from ansible_collections.enplace.inference.plugins.module_utils.verify import bench, server

from enplace import report

RECORDED = Path(__file__).parent / "bench"
FIGURE = json.loads(report.SCHEMA.read_text(encoding="utf-8"))["$defs"]["figure"]
ONE = {"streams": 1, "prompt_tokens": 128, "output_tokens": 64, "requests": 4, "deadline_s": 60}
EIGHT = {"streams": 8, "prompt_tokens": 128, "output_tokens": 64, "requests": 32, "deadline_s": 60}
KEY = "sk-swordfish-swordfish"
# Of one pass: 100 drafts of two tokens, 70 of them right at the first and 50 at both.
DRAFT = {"_drafts": (100, 200, 70, 50)}

TOOL = """\
#!{python}
import json, os, sys, time, urllib.request
argv = sys.argv[1:]
body = json.dumps({{"argv": argv, "environment": dict(os.environ)}}).encode()
request = urllib.request.Request(argv[argv.index("--base-url") + 1] + "/bench", body)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))
told = json.load(opener.open(request))
print(told["says"])
time.sleep(told["takes_s"])
if told["writes"] is not None:
    folder, name = (argv[argv.index(flag) + 1] for flag in ("--result-dir", "--result-filename"))
    with open(os.path.join(folder, name), "w") as stream:
        stream.write(told["writes"])
sys.exit(told["status"])
"""

Change = dict[str, Any]


class Engine:
    """The counters of an engine, and what the tool writes: one change to the recorded result for each run of it.

    A change sets keys of the result; with a leading underscore: _faster (a factor of its rates), _text (instead of the
    result), _status, _says, _takes_s, _others (requests of somebody else), _hits (of the prefix cache), _uncounted
    (tokens that the engine did not generate), _drafts (drafts, drafted tokens, accepted tokens at each position).
    """

    def __init__(self, recorded: str = "one") -> None:
        self.recorded: dict[str, Any] = json.loads((RECORDED / f"{recorded}.json").read_text(encoding="utf-8"))
        self.changes: list[Change] = []
        self.asked: list[dict[str, Any]] = []
        self.counters = {
            "vllm:request_success_total": 3.0,
            "vllm:generation_tokens_total": 30.0,
            "vllm:prefix_cache_hits_total": 0.0,
            "vllm:num_requests_running": 0.0,
        }
        self.root = str(RECORDED)

    def get(self, path: str) -> str:
        if path == "/v1/models":
            return json.dumps({"data": [{"id": "enplace/smoke", "root": self.root}]})
        return "".join(f"{name} {value}\n" for name, value in self.counters.items())

    def run(self, asked: dict[str, Any]) -> dict[str, Any]:
        change = dict(self.changes[len(self.asked)]) if len(self.asked) < len(self.changes) else {}
        self.asked.append(asked)
        own = {key: change.pop(key) for key in list(change) if key.startswith("_")}
        requests, tokens = (int(self.flag(asked, name)) for name in ("--num-prompts", "--random-output-len"))
        prompts = self.recorded["total_input_tokens"] // self.recorded["completed"]
        sizes = {
            "completed": requests,
            "total_output_tokens": requests * tokens,
            "total_input_tokens": requests * prompts,
        }
        faster = own.get("_faster", 1.0)
        times = {key: self.recorded[key] / faster for key in ("median_ttft_ms", "median_tpot_ms")}
        rates = {"output_throughput": self.recorded["output_throughput"] * faster}
        result = {**self.recorded, **sizes, **times, **rates, **change}
        self.counters["vllm:request_success_total"] += requests + own.get("_others", 0)
        self.counters["vllm:generation_tokens_total"] += requests * tokens - own.get("_uncounted", 0)
        self.counters["vllm:prefix_cache_hits_total"] += own.get("_hits", 0)
        if "_drafts" in own:
            self.draft(*own["_drafts"])
        return {
            "says": own.get("_says", ""),
            "takes_s": own.get("_takes_s", 0),
            "status": own.get("_status", 0),
            "writes": own.get("_text", json.dumps(result)),
        }

    def draft(self, drafts: int, drafted: int, *accepted: int) -> None:
        """Count drafts; a server with a draft has these counters from its start."""
        more: dict[str, float] = {
            "vllm:spec_decode_num_drafts_total": drafts,
            "vllm:spec_decode_num_draft_tokens_total": drafted,
            "vllm:spec_decode_num_accepted_tokens_total": sum(accepted),
        }
        for place, count in enumerate(accepted):
            more[f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}}'] = count
        for name, amount in more.items():
            self.counters[name] = self.counters.get(name, 0.0) + amount

    @staticmethod
    def flag(asked: dict[str, Any], name: str) -> str:
        return str(asked["argv"][asked["argv"].index(name) + 1])


@dataclass
class Measured:
    """The figures that were told last, and what the Failure at the end said."""

    figures: list[dict[str, Any]]
    problem: str


Measure = Callable[..., Measured]


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def url(engine: Engine) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(engine.get(self.path))

        def do_POST(self) -> None:
            self._send(json.dumps(engine.run(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))))

        def _send(self, text: str) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_address[1]}"
        serving.shutdown()


@pytest.fixture
def measure(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Measure with the tool beside the interpreter."""
    tool = tmp_path / "bin" / "vllm"
    tool.parent.mkdir()
    tool.write_text(TOOL.format(python=sys.executable))
    tool.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setattr(sys, "executable", str(tool.with_name("python")))
    monkeypatch.setattr(server, "COUNTED_S", 0.2)
    monkeypatch.setattr(server, "_keys", set())

    def run(*workloads: dict[str, Any], known: Any = (), told: Any = None, **target: Any) -> Measured:
        where = {"folder": str(work), "tokenizer": str(RECORDED), **target}
        so_far = told if told is not None else []
        problem = ""
        try:
            figures = bench.measure(bench.Target(url, "enplace/smoke", **where), workloads, known, so_far.append)
            assert figures == so_far[-1], "what was told last is all"
        except Failure as failure:
            problem = str(failure)
        for figure in so_far[-1]:
            jsonschema.validate(figure, FIGURE)
        assert list(work.iterdir()) == [], "what a run writes is removed"
        return Measured(so_far[-1], problem)

    return run


def named(measured: Measured) -> dict[tuple[Any, ...], dict[str, Any]]:
    assert measured.problem == ""
    return {(figure["name"], figure.get("position")): figure for figure in measured.figures}


# What is measured -----------------------------------------------------------------------------------------------------


def test_figures_are_medians_of_what_the_tool_measured(engine: Engine, measure: Measure) -> None:
    # The warm-up, which is a hundred times as slow and does not count.
    engine.changes = [{"_faster": 0.01}, {"_faster": 1.0}, {"_faster": 1.03}, {"_faster": 1.02}]
    found = named(measure(ONE))
    assert set(found) == {("decode", None), ("prefill", None), ("ttft", None)}
    tpot, ttft = engine.recorded["median_tpot_ms"], engine.recorded["median_ttft_ms"]
    decode = found["decode", None]
    assert decode["value"] == pytest.approx(1020 / tpot, abs=1e-4)
    assert decode["values"] == pytest.approx([1000 / tpot, 1030 / tpot, 1020 / tpot], abs=1e-4)
    assert (decode["unit"], decode["streams"], decode["prompt_tokens"]) == ("tokens/s", 1, 128)
    assert found["ttft", None]["value"] == pytest.approx(ttft / 1.02, abs=1e-4)
    prompt = engine.recorded["total_input_tokens"] // engine.recorded["completed"]
    assert found["prefill", None]["value"] == pytest.approx(prompt / ttft * 1020, abs=1e-2)
    assert all(figure["alarms"] == [] for figure in found.values())


def test_several_streams_have_a_throughput_and_no_rate_of_prefill(measure: Measure, engine: Engine) -> None:
    engine.recorded = json.loads((RECORDED / "eight.json").read_text(encoding="utf-8"))
    found = named(measure(EIGHT))
    assert set(found) == {("decode", None), ("throughput", None), ("ttft", None)}
    assert found["throughput", None]["value"] == pytest.approx(engine.recorded["output_throughput"], abs=1e-4)
    assert found["throughput", None]["streams"] == 8


def test_every_run_asks_for_what_no_run_before_it_left_in_a_cache(engine: Engine, measure: Measure) -> None:
    named(measure(ONE, {**ONE, "prompt_tokens": 129}))
    assert len(engine.asked) == 8, "a warm-up and three passes of each workload"
    for flag in ("--seed", "--extra-body", "--result-filename"):
        assert len({engine.flag(asked, flag) for asked in engine.asked}) == 8, flag
    assert [engine.flag(asked, "--num-prompts") for asked in engine.asked[:4]] == ["1", "4", "4", "4"]
    assert "--ignore-eos" in engine.asked[0]["argv"]


def test_the_key_is_in_no_command_line_and_no_figure(
    engine: Engine, measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:1")
    monkeypatch.setenv("VLLM_USE_RUST_BENCH", "1")
    measured = measure(ONE, api_key=KEY)
    assert measured.problem == ""
    for asked in engine.asked:
        assert asked["environment"]["OPENAI_API_KEY"] == KEY
        assert KEY not in " ".join(asked["argv"])
        assert not {"http_proxy", "VLLM_USE_RUST_BENCH"} & set(asked["environment"])
    assert KEY not in json.dumps(measured.figures)
    assert KEY not in repr(bench.Target("u", "m", KEY))
    measure(ONE)
    assert "OPENAI_API_KEY" not in engine.asked[-1]["environment"]


def test_a_figure_says_how_it_was_measured(measure: Measure, url: str) -> None:
    method = named(measure(ONE))["decode", None]["method"]
    assert "a warm-up, then 3 passes of 4 requests with 64 tokens each" in method
    assert f"vllm bench serve --backend openai --endpoint /v1/completions --base-url {url}" in method
    assert "--result-dir '<folder>'" in method
    assert named(measure(ONE))["decode", None]["method"] == method, "the same words for the same load"


def test_figures_so_far_are_told_after_each_workload_and_a_failure_ends_none_of_the_others(
    engine: Engine, measure: Measure
) -> None:
    told: list[list[Any]] = []
    engine.changes = [{}] * 5 + [{"failed": 1}]
    measured = measure(*({**ONE, "prompt_tokens": length} for length in (128, 129, 130)), told=told)
    assert [len(figures) for figures in told] == [3, 3, 6]
    assert "prompts of 129 tokens" in measured.problem
    assert "prompts of 130 tokens" not in measured.problem


def test_the_tokenizer_is_that_of_the_folder_that_is_served(engine: Engine, measure: Measure) -> None:
    named(measure(ONE, tokenizer=None))
    assert engine.flag(engine.asked[0], "--tokenizer") == str(RECORDED)
    engine.root = "enplace/smoke"
    measured = measure(ONE, tokenizer=None)
    assert measured.figures == []
    assert "the prompts need the model's tokenizer" in measured.problem


def test_a_workload_has_defaults() -> None:
    assert bench.Workload.of({"prompt_tokens": 5}) == bench.Workload(1, 5, 128, 4, 3, 1800)
    assert bench.Workload.of({"prompt_tokens": 5, "streams": 8}).requests == 32


# Failures: no figure, and a reason ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"_status": 3, "_says": f"no such flag {KEY}"}, ("failed", "exit status 3", "no such flag ***")),
        ({"_text": None}, ("left no result",)),
        ({"_text": '{"completed": 4, "fai'}, ("not whole",)),
        ({"_text": "[]"}, ("not whole", "a list")),
        ({"_text": " " * (bench.MAX_RESULT_BYTES + 1)}, ("not whole", "more than")),
        ({"median_tpot_ms": float("nan")}, ("not whole", "NaN")),
        ({"median_tpot_ms": 0}, ("measured nothing", "median_tpot_ms")),
        ({"median_ttft_ms": None}, ("lacks a part", "median_ttft_ms")),
        ({"median_ttft_ms": "5"}, ("lacks a part", "median_ttft_ms")),
        ({"completed": 3}, ("not every request was answered", "3 completed")),
        ({"completed": 5}, ("not every request was answered", "5 completed")),
        ({"failed": 1}, ("not every request was answered", "1 failed")),
        ({"failed": 1, "_says": f"a\nError 0: no {KEY}\nb"}, ("output: Error 0: no ***",)),
        ({"total_output_tokens": 255}, ("have not the tokens asked for", "255 by usage")),
        ({"total_output_tokens": 257}, ("have not the tokens asked for", "257 by usage")),
        ({"_uncounted": 1}, ("have not the tokens asked for", "255 by vllm:generation_tokens_total")),
        ({"_others": -1}, ("did not count the requests",)),
        ({"_drafts": (100, 200, 101, 100)}, ("contradict each other", "at most 200")),
    ],
)
def test_a_pass_that_failed_gives_no_figure_and_a_reason(
    engine: Engine, measure: Measure, change: Change, told: tuple[str, ...]
) -> None:
    engine.changes = [{}, {}, change]
    measured = measure(ONE, api_key=KEY)
    assert measured.figures == []
    assert measured.problem.startswith("figures of 1 stream, prompts of 128 tokens: ")
    for part in told:
        assert part in measured.problem
    assert KEY not in measured.problem


def test_a_warm_up_that_failed_ends_the_workload(engine: Engine, measure: Measure) -> None:
    engine.changes = [{"failed": 1}]
    measured = measure(ONE)
    assert measured.figures == []
    assert "not every request was answered" in measured.problem
    assert len(engine.asked) == 1


def test_a_missing_tool_is_named(measure: Measure, tmp_path: Path) -> None:
    (tmp_path / "bin" / "vllm").unlink()
    measured = measure(ONE)
    assert measured.figures == []
    assert f"where: {tmp_path}/bin/vllm" in measured.problem


def test_a_work_folder_that_is_not_there_is_named(measure: Measure) -> None:
    measured = measure(ONE, folder="/no/such/folder")
    assert measured.figures == []
    assert "/no/such/folder" in measured.problem


def test_the_deadline_ends_all_runs_of_a_workload_together(engine: Engine, measure: Measure) -> None:
    engine.changes = [{}, {"_takes_s": 30}]
    begin = time.monotonic()
    measured = measure({**ONE, "deadline_s": 3})
    assert time.monotonic() - begin < 15
    assert measured.figures == []
    assert "the deadline passed" in measured.problem


# Alarms ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([100, 100, 100], []),
        ([100, 109, 99.5], []),
        ([100, 111, 99], ["noise"]),
        ([105, 111, 99], ["noise"]),
        ([110, 105, 100], []),
        ([91, 100, 100], []),
        ([89, 100, 100], ["noise", "still cold"]),
        ([100], []),
        ([100, 101, 102], []),
        ([100, 101, 102, 103], ["still cold"]),
        ([103, 102, 101, 100], []),
    ],
)
def test_passes_that_differ_or_become_faster_are_an_alarm(values: list[float], told: list[str]) -> None:
    assert [text.split(":")[0] for text in bench.alarms("decode", values)] == told
    # A time that falls is a rate that rises.
    assert [text.split(":")[0] for text in bench.alarms("ttft", [1e4 / value for value in values])] == told


def test_a_share_is_never_cold_and_nothing_at_all_is_no_noise() -> None:
    assert bench.alarms("acceptance", [0.5, 0.51, 0.52, 0.53]) == []
    assert bench.alarms("acceptance", [0.0, 0.0, 0.0]) == []
    assert bench.alarms("acceptance", [0.0, 0.0, 0.1]) != []


def test_how_much_passes_may_differ_is_a_parameter() -> None:
    assert bench.alarms("decode", [100, 104, 102], 0.03) != []
    assert bench.alarms("decode", [100, 104, 102], 0.05) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"_others": 1}, "pass 2: busy: others asked the server meanwhile (1 requests"),
        ({"_uncounted": -7}, "pass 2: busy: others asked the server meanwhile (0 requests finished beside ours, 7 tok"),
        ({"_hits": 64}, "pass 2: cached: 12% of the prompts"),
        ({"total_input_tokens": 600}, "pass 2: prompts: the server counts 150 tokens of each, asked were 128"),
    ],
)
def test_what_disturbs_a_pass_is_an_alarm(engine: Engine, measure: Measure, change: Change, told: str) -> None:
    engine.changes = [{}, {}, change]
    for name, figure in named(measure(ONE)).items():
        assert figure["alarms"][0].startswith(told), name


@pytest.mark.parametrize(
    ("change", "busy"),
    [
        ({"_others": 1, "_uncounted": -1}, False),
        ({"_others": 2, "_uncounted": -2}, False),
        ({"_others": 3, "_uncounted": -3}, True),
        ({"_others": 1, "_uncounted": -2}, True),
        ({"_uncounted": -1}, True),
    ],
    ids=["a probe", "at both ends of a minute", "too many", "more than a token", "tokens of nobody"],
)
def test_whether_a_server_is_alive_may_be_asked_meanwhile(
    engine: Engine, measure: Measure, change: Change, busy: bool
) -> None:
    engine.changes = [{}, {}, change]
    found = named(measure(ONE, probed=True))["decode", None]
    assert any("busy" in alarm for alarm in found["alarms"]) is busy
    assert "asks for one token a minute" in found["method"]


def test_requests_that_run_before_a_pass_are_an_alarm(engine: Engine, measure: Measure) -> None:
    engine.counters["vllm:num_requests_running"] = 2.0
    assert "2 requests running before" in named(measure(ONE))["decode", None]["alarms"][0]


def test_little_from_the_cache_is_no_alarm(engine: Engine, measure: Measure) -> None:
    engine.changes = [{}, {"_hits": 5}]
    assert named(measure(ONE))["decode", None]["alarms"] == []


# Drafts ---------------------------------------------------------------------------------------------------------------


def test_a_draft_has_its_acceptance_whole_and_by_position(engine: Engine, measure: Measure) -> None:
    engine.draft(7, 14, 3, 1)
    # What the warm-up drafted does not count.
    engine.changes = [{"_drafts": (1000, 2000, 0, 0)}, DRAFT, DRAFT, DRAFT]
    found = named(measure(ONE))
    assert found["acceptance", None]["value"] == 0.6
    assert found["tokens_per_step", None]["value"] == 2.2
    assert [found["acceptance", place]["value"] for place in (0, 1)] == [0.7, 0.5]
    assert {figure["draft_tokens"] for figure in found.values()} == {2}
    assert all(figure["alarms"] == [] for figure in found.values())


def test_without_a_draft_there_is_no_acceptance(measure: Measure) -> None:
    found = named(measure(ONE))
    assert not [name for name, _place in found if name in ("acceptance", "tokens_per_step")]
    assert "draft_tokens" not in found["decode", None]


def test_a_draft_that_drafts_nothing_is_an_alarm_and_no_acceptance(engine: Engine, measure: Measure) -> None:
    engine.draft(0, 0, 0, 0)
    found = named(measure(ONE))
    assert ("acceptance", None) not in found
    assert "nothing was drafted" in found["decode", None]["alarms"][0]


# The recipe's figures -------------------------------------------------------------------------------------------------

WORKLOAD = bench.Workload.of({"prompt_tokens": 2048, "output_tokens": 64})


def compared(name: str, value: float, *known: dict[str, Any], **more: Any) -> tuple[Any, Any]:
    """(value of the recipe's figure, within) of one measured figure; None for either that is absent."""
    found = bench.compared({"name": name, "value": value, **more}, WORKLOAD, known)
    return found.get("recipe", {}).get("value"), found.get("within")


def known(metric: str, value: float, unit: str = "tok/s", **more: Any) -> dict[str, Any]:
    return {"metric": metric, "value": value, "unit": unit, "source": "page", **more}


@pytest.mark.parametrize(
    ("value", "tolerance", "within"),
    [
        (76, {"percent": 5}, True),
        (79.8, {"percent": 5}, True),
        (79.9, {"percent": 5}, False),
        (72.1, {"percent": 5}, False),
        (78, {"absolute": 2}, True),
        (78.1, {"absolute": 2}, False),
        (76, {"exact": True}, True),
        (76.1, {"exact": True}, False),
    ],
)
def test_a_figure_is_within_the_tolerance_or_not(value: float, tolerance: dict[str, Any], within: bool) -> None:
    assert compared("decode", value, known("decode_rate", 76, tolerance=tolerance)) == (76, within)


def test_without_a_tolerance_nothing_is_judged() -> None:
    assert compared("decode", 1.0, known("decode_rate", 76)) == (76, None)


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("prefill", known("prefill_rate", 10)),
        ("throughput", known("aggregate_rate", 10)),
        ("ttft", known("ttft", 10, "ms")),
        ("ttft", known("ttft", 0.01, "s")),
        ("acceptance", known("acceptance", 1000, "percent")),
        ("acceptance", known("acceptance", 10, "ratio")),
        ("tokens_per_step", known("tokens_per_step", 10, "tokens")),
        ("tokens_per_step", known("tokens_per_step", 10, "ratio")),
    ],
)
def test_metrics_and_units_of_a_recipe_are_ours(name: str, figure: dict[str, Any]) -> None:
    assert compared(name, 10, figure) == (10, None)


def test_an_absolute_tolerance_is_in_our_unit_too() -> None:
    for value, within in ((480, True), (491, False)):
        assert compared("ttft", value, known("ttft", 0.44, "s", tolerance={"absolute": 0.05})) == (440, within)


@pytest.mark.parametrize(
    "at",
    [
        {"host": "another"},
        {"engine": "0.1.0"},
        {"backend": "other"},
        {"gpu_memory_utilization": 0.5},
        {"state": "cold"},
        {"prompt_tokens": 2049},
        {"output_tokens": 65},
        {"streams": 8},
        {"draft_tokens": 1},
    ],
)
def test_a_figure_of_something_else_is_not_compared(at: dict[str, Any]) -> None:
    assert compared("decode", 1.0, known("decode_rate", 76, at=at)) == (None, None)


def test_a_range_and_another_metric_are_not_compared() -> None:
    ranged = {"metric": "decode_rate", "low": 1, "high": 2, "unit": "tok/s", "source": "page"}
    assert compared("decode", 1.0, ranged, known("stream_rate", 76), known("decode_rate", 76, "ms")) == (None, None)


def test_the_figure_that_says_most_is_compared() -> None:
    exact = known("decode_rate", 72, at={"prompt_tokens": 2048, "draft_tokens": 0, "streams": 1, "state": "warm"})
    assert compared("decode", 1.0, known("decode_rate", 76), exact, known("decode_rate", 77)) == (72, None)


def test_a_draft_is_compared_with_a_draft_and_a_position_with_its_own() -> None:
    figures = [known("decode_rate", value, at={"draft_tokens": count}) for count, value in enumerate((60, 76, 80))]
    assert compared("decode", 1.0, *figures) == (60, None)
    assert compared("decode", 1.0, *figures, draft_tokens=2) == (80, None)
    places = [known("position_acceptance", 90 - place, "percent", at={"position": place}) for place in (0, 1)]
    assert compared("acceptance", 1.0, *places, known("acceptance", 50, "percent"), position=1) == (0.89, None)
    assert compared("acceptance", 1.0, *places) == (None, None)


def test_a_measured_figure_has_the_recipes_beside_it(engine: Engine, measure: Measure) -> None:
    rate = 1000 / engine.recorded["median_tpot_ms"]
    figures = [known("decode_rate", rate * factor, tolerance={"percent": 5}) for factor in (1.04, 2)]
    for figure, within in zip(figures, (True, False), strict=True):
        assert named(measure(ONE, known=[figure]))["decode", None]["within"] is within
