# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Every check by name with its parameters: the one table that the linter, the module and the documentation share.

Nothing is imported here but the standard library, so that the controller can validate a recipe's checks without the
client that the checks themselves need.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# Part of the digest of a list of checks. Raise it when what any check asks or demands changes: a stored report of the
# older code is then evidence of something else, and the checks run again.
REVISION = 3

MAX_TOKENS = 4096

# Which checks run when. `gate`: before a release serves, so it must be quick. `full`: those and the slow ones. `bench`:
# those of the gate, then what is measured. `soak`: the full ones again and again, for hours.
GATE, FULL, BENCH, SOAK = SUITES = ("gate", "full", "bench", "soak")


@dataclass(frozen=True)
class Parameter:
    """One parameter of a check.

    kind: `text`, `choice` (one of `choices`), `pattern` (a regular expression), `integer`, `number`, `flag` (true or
        false), `lengths` (a list of whole numbers, each once), `shares` (a list of numbers from 0 to 1), `versions` (a
        mapping of names to versions) or `prompts` (a list of {ask: text, expect: [text, ...]}).
    minimum and maximum: bounds of a number, of each number of `lengths`, or of the count of `prompts`; both inclusive.
    default: the value where the recipe is silent; None where it is found at run time, as the summary says.
    """

    kind: str
    summary: str
    required: bool = False
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckSpec:
    """One check: what it proves, and the parameters it takes besides `deadline_s` and `suite`."""

    name: str
    summary: str
    deadline_s: int
    own: Mapping[str, Parameter] = field(default_factory=dict)

    @property
    def parameters(self) -> dict[str, Parameter]:
        """All parameters, those that every check has among them."""
        return {
            **self.own,
            "suite": Parameter(
                "choice",
                "gate: a release must pass it to serve; full: only asked when somebody wants to know.",
                default=GATE,
                choices=(GATE, FULL),
            ),
            "deadline_s": Parameter(
                "integer",
                "Seconds until the check is given up as failed.",
                default=self.deadline_s,
                minimum=1,
                maximum=86400,
            ),
        }


# More tokens than any model reads; beyond it a length is a slip of the keyboard.
MAX_LENGTH = 16_777_216
# A list of lengths costs a prompt or more for each.
MAX_LENGTHS = 32

_TEMPERATURE = Parameter("number", "Sampling temperature.", default=0, minimum=0, maximum=2)
_REPLY = Parameter(
    "integer",
    "Most tokens in a reply; a model that thinks first needs many.",
    default=2048,
    minimum=1,
    maximum=MAX_TOKENS,
)
_ASK = Parameter("text", "The prompt.", required=True)
_SEED = Parameter(
    "text",
    "Prompts are made up with it, the same in every run, for a model too small to read each; at random where absent, "
    "which proves more.",
)

_HOT = Parameter(
    "number", "Sampling temperature, high enough for unlikely tokens to come.", default=1.5, minimum=0.1, maximum=2
)
_REFUSED = Parameter(
    "text",
    "Why this engine refuses it: the request of the check must then get HTTP 400 with a message, and the check ends as "
    "refused.",
)

CHECKS: dict[str, CheckSpec] = {
    spec.name: spec
    for spec in (
        CheckSpec(
            "identity",
            "The server is the engine version, serves the model under its name, and refuses any other name.",
            60,
            {
                "version": Parameter(
                    "text", "Version the engine must report; that of the release's engine where absent."
                ),
                "model": Parameter("text", "Name the model must be served under; that of the release where absent."),
                "context": Parameter("integer", "Context length in tokens the server must report.", minimum=1),
            },
        ),
        CheckSpec(
            "known_answers",
            "Every prompt, asked alone, is answered correctly, and with its own answer only.",
            300,
            {
                "temperature": _TEMPERATURE,
                "prompts": Parameter(
                    "prompts", "Prompts with their accepted answers.", required=True, minimum=2, maximum=256
                ),
                "max_tokens": Parameter(
                    "integer", "Most tokens in a reply.", default=64, minimum=1, maximum=MAX_TOKENS
                ),
            },
        ),
        CheckSpec(
            "known_answers_in_flight",
            "The same prompts, decoded side by side in one batch, are answered as they are alone.",
            300,
            {
                "temperature": _TEMPERATURE,
                "requests": Parameter("integer", "Requests in flight at once.", default=8, minimum=2, maximum=256),
                "prompts": Parameter(
                    "prompts", "Prompts; those of known_answers where absent.", minimum=2, maximum=256
                ),
                "max_tokens": Parameter(
                    "integer", "Most tokens in a reply.", default=64, minimum=1, maximum=MAX_TOKENS
                ),
            },
        ),
        CheckSpec(
            "logprobs",
            "Every token comes with its top_logprobs: as many as asked, distinct, sorted, its own token first.",
            300,
            {
                "ask": _ASK,
                "top": Parameter("integer", "Entries for every token.", default=20, minimum=1, maximum=1000),
                "max_tokens": Parameter(
                    "integer", "Most tokens in the reply.", default=32, minimum=1, maximum=MAX_TOKENS
                ),
                "refused": _REFUSED,
            },
        ),
        CheckSpec(
            "usage",
            "Tokens counted by usage are the tokens there are, streamed and plain.",
            300,
            {
                "ask": _ASK,
                "max_tokens": Parameter(
                    "integer", "Most tokens in a reply.", default=32, minimum=1, maximum=MAX_TOKENS
                ),
            },
        ),
        CheckSpec(
            "tool_call",
            "With a tool at hand the model calls it, once and with the right arguments; without one it does not.",
            600,
            {
                "calls": Parameter("integer", "Calls, each about another city.", default=5, minimum=1, maximum=16),
                "temperature": Parameter("number", "Sampling temperature.", default=0.6, minimum=0, maximum=2),
                "max_tokens": _REPLY,
            },
        ),
        CheckSpec(
            "tool_call_streamed",
            "A streamed tool call comes in pieces that add up to the call that comes at once.",
            600,
            {"max_tokens": _REPLY},
        ),
        CheckSpec(
            "tool_result",
            "What a tool returned, random each time, is in the answer.",
            600,
            {
                "rounds": Parameter(
                    "integer", "Conversations, each with other values.", default=3, minimum=2, maximum=8
                ),
                "max_tokens": _REPLY,
            },
        ),
        CheckSpec(
            "prompt_logprobs",
            "Every token of the prompt comes with its log-probabilities.",
            300,
            {
                "ask": _ASK,
                "top": Parameter("integer", "Entries for every token.", default=5, minimum=1, maximum=1000),
                "refused": _REFUSED,
            },
        ),
        CheckSpec(
            "json_schema",
            "A reply under a JSON schema is what the schema says, also where no prompt hints at it.",
            600,
            {"max_tokens": _REPLY, "refused": _REFUSED},
        ),
        CheckSpec(
            "logit_bias",
            "A biased token always comes, a banned one never, and no other request's row is touched.",
            300,
            {"ask": _ASK, "refused": _REFUSED},
        ),
        CheckSpec(
            "min_p",
            "Tokens sampled with min_p are all likely enough; without it less likely ones come.",
            300,
            {
                "ask": _ASK,
                "temperature": _HOT,
                "min_p": Parameter(
                    "number",
                    "Least probability of a token, as a share of the likeliest one's.",
                    default=0.1,
                    minimum=0.001,
                    maximum=0.9,
                ),
                "refused": _REFUSED,
            },
        ),
        CheckSpec(
            "min_tokens",
            "A reply that would have ended goes on for min_tokens, and the next one ends again.",
            300,
            {
                "ask": _ASK,
                "max_tokens": Parameter(
                    "integer",
                    "Most tokens of the plain reply, which must end by itself.",
                    default=64,
                    minimum=1,
                    maximum=MAX_TOKENS,
                ),
                "refused": _REFUSED,
            },
        ),
        CheckSpec(
            "bad_words",
            "A word that the model says is not said where it is a bad one, and nothing else changes.",
            300,
            {"ask": _ASK, "refused": _REFUSED},
        ),
        CheckSpec(
            "seed",
            "The same seed samples the same tokens, another one others.",
            300,
            {"ask": _ASK, "temperature": _HOT, "refused": _REFUSED},
        ),
        CheckSpec(
            "prefix_cache",
            "A prompt seen before is read from the prefix cache, and the reply is the same as without it.",
            1800,
            {
                "tokens": Parameter(
                    "lengths", "Lengths of the prompts in tokens.", required=True, minimum=128, maximum=MAX_LENGTH
                ),
                "block": Parameter(
                    "integer",
                    "Cached tokens must be a multiple of it; the engine's own block size where absent.",
                    minimum=1,
                ),
                "boundaries": Parameter(
                    "flag",
                    "Also prompts that end with a block, one token after its end, and one token before it.",
                    default=True,
                ),
                "exact": Parameter(
                    "flag", "Log-probabilities must be equal to the last bit; false: the tokens only.", default=True
                ),
                "seed": _SEED,
            },
        ),
        CheckSpec(
            "needles",
            "A random code hidden in a long prompt is found, at every depth.",
            3600,
            {
                "tokens": Parameter(
                    "lengths", "Lengths of the prompts in tokens.", required=True, minimum=128, maximum=MAX_LENGTH
                ),
                "depths": Parameter("integer", "Depths tried at each length.", default=3, minimum=1, maximum=8),
                "max_tokens": _REPLY,
                "seed": _SEED,
            },
        ),
        CheckSpec(
            "draft",
            "Speculation is at work, and the share of drafted tokens that is accepted is as expected.",
            600,
            {
                "acceptance_min": Parameter(
                    "number", "Least share of drafted tokens accepted.", required=True, minimum=0, maximum=1
                ),
                "acceptance_max": Parameter(
                    "number",
                    "Largest share; above it something other than the draft is measured.",
                    minimum=0,
                    maximum=1,
                ),
                "tokens_per_step_min": Parameter(
                    "number",
                    "Least tokens that a step of the engine gives: its own one and the accepted ones.",
                    minimum=1,
                ),
                "per_position_min": Parameter(
                    "shares", "Least share accepted at each position of a draft, the first position first."
                ),
                "requests": Parameter("integer", "Replies it is measured over.", default=8, minimum=1, maximum=256),
            },
        ),
        CheckSpec(
            "kv_pool",
            "The engine's pool of KV blocks holds as many tokens as the recipe counts on.",
            60,
            {
                "tokens": Parameter("integer", "Least tokens in the pool.", required=True, minimum=1),
                "concurrency": Parameter(
                    "number", "Least number of requests of full context that the pool holds.", minimum=0
                ),
            },
        ),
        CheckSpec(
            "libraries",
            "The process that serves runs in the environment of the checks, which has these versions of libraries.",
            60,
            {
                "versions": Parameter(
                    "versions", "Name of each library (its distribution) and its exact version.", required=True
                ),
            },
        ),
        CheckSpec(
            "log_line",
            "The journal of this run of the unit has a line, or has it not.",
            60,
            {
                "pattern": Parameter("pattern", "Regular expression, searched in every line.", required=True),
                "absent": Parameter("flag", "No line may match.", default=False),
            },
        ),
        CheckSpec(
            "no_errors",
            "The unit was not restarted, and the journal of its run has no error.",
            60,
            {
                "apart_from": Parameter(
                    "pattern", "Regular expression of errors that are known to mean nothing; none where absent."
                ),
            },
        ),
        CheckSpec(
            "healthy",
            "The server is healthy, still answers, and has not restarted since the first check.",
            60,
        ),
    )
}


def validate_checks(checks: Any) -> list[str]:
    """Every problem of a recipe's list of checks, each `checks[2].top: what is wrong; what to do`; none: it is good."""
    if not isinstance(checks, list):
        return [f"checks: expected a list of mappings, found {_kind(checks)}"]
    if not checks:
        return ["checks: the list is empty; a server that nothing was asked of is not verified"]
    problems: list[str] = []
    answers_at = [i for i, item in enumerate(checks) if isinstance(item, dict) and item.get("check") == "known_answers"]
    gated = [i for i in answers_at if checks[i].get("suite", GATE) == GATE]
    seen: dict[str, int] = {}
    for index, item in enumerate(checks):
        where = f"checks[{index}]"
        if not isinstance(item, dict):
            problems.append(f"{where}: expected a mapping such as {{check: identity}}, found {_kind(item)}")
            continue
        name = item.get("check")
        if name is None:
            problems.append(f"{where}.check: missing; name one of {', '.join(CHECKS)}")
            continue
        if not isinstance(name, str) or name not in CHECKS:
            problems.append(f"{where}.check: unknown check {name!r}; {_did_you_mean(name, CHECKS)}")
            continue
        text = json.dumps(item, sort_keys=True, default=str)
        if text in seen:
            problems.append(f"{where}: the same as checks[{seen[text]}]; name it once")
        seen.setdefault(text, index)
        problems += _problems_of(where, CHECKS[name], item)
        if name == "draft":
            problems += _problems_of_window(where, item)
        if name == "known_answers_in_flight" and "prompts" not in item:
            among = gated if item.get("suite", GATE) == GATE else answers_at
            if not any(i < index for i in among):
                which = "known_answers of the gate" if answers_at and not gated else "known_answers"
                problems.append(f"{where}.prompts: missing, and no {which} before it has any; give one of the two")
    if not any(isinstance(item, dict) and item.get("suite", GATE) == GATE for item in checks):
        problems.append("checks: none is of the gate; a server that nothing was asked of is not verified")
    return problems


def of_suite(checks: list[dict[str, Any]], suite: str) -> list[dict[str, Any]]:
    """The checks of one of `SUITES`, in their order."""
    if suite in (FULL, SOAK):
        return list(checks)
    return [item for item in checks if item.get("suite", GATE) == GATE]


def with_defaults(checks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same checks with every parameter written out. The list must be valid."""
    filled: list[dict[str, Any]] = []
    prompts: Any = None
    for item in checks:
        spec = CHECKS[item["check"]]
        values: dict[str, Any] = {"check": spec.name}
        for key, parameter in spec.parameters.items():
            values[key] = item.get(key, parameter.default)
        if spec.name == "known_answers":
            prompts = values["prompts"]
        if spec.name == "known_answers_in_flight" and values["prompts"] is None:
            values["prompts"] = prompts
        filled.append(values)
    return filled


def checks_digest(checks: list[dict[str, Any]]) -> str:
    """SHA-256 of the checks with their defaults and of the revision of their code: 64 hex digits."""
    data = {"revision": REVISION, "checks": with_defaults(checks)}
    return hashlib.sha256(json.dumps(data, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def normal(text: str) -> str:
    """Text as it is compared: composed letters, without case, straight apostrophes."""
    return unicodedata.normalize("NFC", text).replace("\u2019", "'").casefold()


def answers(reply: str, expect: Iterable[str]) -> bool:
    """Whether the reply holds one of the accepted answers as whole words; 42 is in neither 1420 nor 4.42 nor -42."""
    for answer in expect:
        word = re.escape(normal(answer.strip()))
        before, after = r"(?<!\w)", r"(?!\w)"
        if answer.strip()[:1].isdigit():
            before += r"(?<![-\u2212])(?<!\d[.,])"
        if answer.strip()[-1:].isdigit():
            after += r"(?![.,]\d)"
        if re.search(before + word + after, normal(reply)):
            return True
    return False


def _problems_of(where: str, spec: CheckSpec, item: dict[Any, Any]) -> list[str]:
    problems: list[str] = []
    for key, value in item.items():
        if key == "check":
            continue
        parameter = spec.parameters.get(key) if isinstance(key, str) else None
        if parameter is None:
            problems.append(f"{where}.{key}: unknown parameter of {spec.name}; {_did_you_mean(key, spec.parameters)}")
        else:
            problems += _problems_of_value(f"{where}.{key}", parameter, value)
    for key, parameter in spec.parameters.items():
        if parameter.required and key not in item:
            problems.append(f"{where}.{key}: missing; {spec.name} needs it ({parameter.summary.rstrip('.').lower()})")
    return problems


def _problems_of_value(where: str, parameter: Parameter, value: Any) -> list[str]:
    if parameter.kind == "prompts":
        return _problems_of_prompts(where, parameter, value)
    if parameter.kind == "text":
        if not isinstance(value, str):
            return [f"{where}: expected text, found {_kind(value)}" + ("; quote it" if _number(value) else "")]
        return [] if value.strip() else [f"{where}: expected text, found only blanks"]
    if parameter.kind == "choice":
        return (
            []
            if value in parameter.choices
            else [f"{where}: expected {' or '.join(parameter.choices)}, found {value!r}"]
        )
    if parameter.kind == "pattern":
        return _problems_of_pattern(where, value)
    if parameter.kind == "flag":
        hint = "; write it without quotes" if isinstance(value, str) else ""
        return [] if isinstance(value, bool) else [f"{where}: expected true or false, found {_kind(value)}{hint}"]
    if parameter.kind == "lengths":
        return _problems_of_lengths(where, parameter, value)
    if parameter.kind == "versions":
        return _problems_of_versions(where, value)
    if parameter.kind == "shares":
        return _problems_of_shares(where, value)
    if not _number(value) or (parameter.kind == "integer" and not isinstance(value, int)):
        expected = "a whole number" if parameter.kind == "integer" else "a number"
        return [f"{where}: expected {expected}, found {_kind(value)}"]
    return _problems_of_bounds(where, parameter, value, str(value))


def _problems_of_pattern(where: str, value: Any) -> list[str]:
    if not isinstance(value, str):
        return [f"{where}: expected a regular expression as text, found {_kind(value)}"]
    try:
        pattern = re.compile(value)
    except (re.error, RecursionError, OverflowError) as error:
        return [f"{where}: expected a regular expression, found {value!r} ({error}); escape what is meant literally"]
    if pattern.search("") is not None:
        return [f"{where}: {value!r} matches an empty line, so it would prove nothing; name words of the line"]
    return []


def _problems_of_lengths(where: str, parameter: Parameter, value: Any) -> list[str]:
    if not isinstance(value, list):
        hint = f"; write [{value}]" if _number(value) else ""
        return [f"{where}: expected a list of whole numbers, found {_kind(value)}{hint}"]
    if not 1 <= len(value) <= MAX_LENGTHS:
        return [f"{where}: expected 1 to {MAX_LENGTHS} lengths, found {len(value)}"]
    problems: list[str] = []
    for index, length in enumerate(value):
        here = f"{where}[{index}]"
        if not _number(length) or not isinstance(length, int):
            problems.append(f"{here}: expected a whole number, found {_kind(length)}")
            continue
        problems += _problems_of_bounds(here, parameter, length, str(length))
        if length in value[:index]:
            problems.append(f"{here}: {length} is there already; name each length once")
    return problems


def _problems_of_versions(where: str, value: Any) -> list[str]:
    if not isinstance(value, dict) or not value:
        return [f"{where}: expected a mapping such as {{torch: 2.13.0}}, found {_kind(value)}"]
    return [
        f"{where}.{name}: expected a version as text, found {_kind(version)}" + ("; quote it" * _number(version))
        for name, version in value.items()
        if not isinstance(version, str) or not version.strip()
    ]


def _problems_of_shares(where: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_LENGTHS:
        return [f"{where}: expected a list of 1 to {MAX_LENGTHS} numbers, found {_kind(value)}"]
    return [
        f"{where}[{index}]: expected a number from 0 to 1, found {_kind(share)}"
        for index, share in enumerate(value)
        if not _number(share) or not 0 <= share <= 1
    ]


def _problems_of_window(where: str, item: dict[Any, Any]) -> list[str]:
    least: Any = item.get("acceptance_min")
    most: Any = item.get("acceptance_max")
    if _number(least) and _number(most) and least >= most:
        return [f"{where}.acceptance_max: expected more than acceptance_min ({least}), found {most}"]
    return []


def _problems_of_prompts(where: str, parameter: Parameter, value: Any) -> list[str]:
    if not isinstance(value, list):
        return [f"{where}: expected a list of {{ask, expect}}, found {_kind(value)}"]
    problems = _problems_of_bounds(where, parameter, len(value), f"{len(value)} prompts")
    whole: list[list[str]] = []
    for index, prompt in enumerate(value):
        here = f"{where}[{index}]"
        if not isinstance(prompt, dict):
            problems.append(f"{here}: expected {{ask: ..., expect: [...]}}, found {_kind(prompt)}")
            continue
        for key in prompt:
            if key not in ("ask", "expect"):
                problems.append(f"{here}.{key}: unknown key of a prompt; {_did_you_mean(key, ('ask', 'expect'))}")
        ask, expect = prompt.get("ask"), prompt.get("expect")
        if not isinstance(ask, str) or not ask.strip():
            problems.append(f"{here}.ask: expected the prompt as text, found {_kind(ask)}")
            continue
        if not isinstance(expect, list) or not expect:
            problems.append(f"{here}.expect: expected a list of at least one accepted answer, found {_kind(expect)}")
            continue
        bad = [answer for answer in expect if not isinstance(answer, str) or not re.search(r"\w", answer)]
        for answer in bad:
            hint = "; quote it" if _number(answer) else ""
            problems.append(f"{here}.expect: expected words or digits as text, found {answer!r}{hint}")
        if bad:
            continue
        if answers(ask, expect):
            problems.append(
                f"{here}.expect: the prompt holds its own answer, so a mere echo would pass; ask differently"
            )
        whole.append(expect)
    if not problems and not any(_distinct(a, b) for a in whole for b in whole):
        problems.append(f"{where}: all prompts accept the same answers, so one constant reply would pass; vary them")
    return problems


def _problems_of_bounds(where: str, parameter: Parameter, value: float, found: str) -> list[str]:
    if parameter.minimum is not None and value < parameter.minimum:
        return [f"{where}: expected at least {parameter.minimum}, found {found}"]
    if parameter.maximum is not None and value > parameter.maximum:
        return [f"{where}: expected at most {parameter.maximum}, found {found}"]
    return []


def _distinct(one: list[str], other: list[str]) -> bool:
    return not any(answers(answer, other) for answer in one) and not any(answers(answer, one) for answer in other)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, (bool, int, float, str)):
        return f"{type(value).__name__} {value!r}"[:80]
    return {"dict": "a mapping", "list": "a list"}.get(type(value).__name__, type(value).__name__)


def _did_you_mean(word: Any, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(str(word), names, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else "known are " + ", ".join(names)
