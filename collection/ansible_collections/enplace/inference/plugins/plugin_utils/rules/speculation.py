# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Rules of speculative decoding: a draft that accepts nothing only shows as a server that is slower than without it."""

from __future__ import annotations

from collections.abc import Iterator

from ..lint import Subject, number_of
from ..recipe import Problem
from .common import Catalogue, checks, draftless, gated_delta, in_checkpoint, method, prefix_caching, text_of

catalogue = Catalogue()

# Past this depth drafting cost more than the accepted tokens brought, on the one model where it was swept.
PLATEAU = 3


@catalogue.rule(
    "mtp-without-tensors",
    "error",
    "The method mtp is used only where the checkpoint has a multi-token-prediction head.",
    "the Spark page, Troubleshooting: 74,391 tensors and zero mtp or nextn entries",
)
def mtp_tensors(subject: Subject) -> Iterator[Problem]:
    tensors = subject.model.get("tensors")
    if in_checkpoint(method(subject)) and tensors is not None and tensors["mtp"] == 0:
        yield Problem(
            subject.place("arguments", "speculative-config", "method"),
            "the checkpoint has no tensors of an MTP head, so there is nothing to draft with",
            method(subject),
            "a method with an external draft, such as eagle3, or no speculative-config",
            "name a draft under draft, or remove speculative-config",
        )


@catalogue.rule(
    "speculation-method-missing",
    "error",
    "speculative-config names its method.",
    "vLLM 0.24.0 guesses it only from eagle-, eagle3 or dflash in the draft's name, and the draft here is a path",
)
def method_missing(subject: Subject) -> Iterator[Problem]:
    if "speculative-config" in subject.arguments and not method(subject):
        yield Problem(
            subject.place("arguments", "speculative-config"),
            "has no method; the engine guesses it from the draft's name and may guess wrong",
            text_of(subject.speculation.get("method", "no method")) if subject.speculation else "no mapping",
            "method: eagle3, mtp, ngram, ...",
            "write speculative-config as a mapping with its method",
        )


@catalogue.rule(
    "speculation-depth-missing",
    "error",
    "speculative-config states num_speculative_tokens, on which speed and the KV pool depend.",
    "vLLM 0.24.0 config/speculative.py demands it where the draft states no n_predict; the pool holds k more states",
)
def depth_missing(subject: Subject) -> Iterator[Problem]:
    if subject.speculation and not in_checkpoint(method(subject)):
        depth = number_of(subject.speculation.get("num_speculative_tokens"))
        if depth is None or depth < 1:
            yield Problem(
                subject.place("arguments", "speculative-config", "num_speculative_tokens"),
                "how many tokens are drafted at each step is not stated",
                text_of(subject.speculation.get("num_speculative_tokens", "absent")),
                "a whole number of at least 1",
                "start with num_speculative_tokens: 1",
            )


@catalogue.rule(
    "draft-without-speculation",
    "error",
    "A draft is named only with a speculative-config that uses it.",
    "the recipe schema: draft",
)
def draft_unused(subject: Subject) -> Iterator[Problem]:
    if "draft" not in subject.variant:
        return
    name = method(subject)
    if "speculative-config" not in subject.arguments:
        yield Problem(
            subject.place("draft"),
            "a draft is downloaded and nothing uses it",
            "no speculative-config",
            "arguments.speculative-config with the draft's method",
            "add speculative-config: {method: eagle3, num_speculative_tokens: 1}, or remove draft",
        )
    elif name and draftless(name):
        yield Problem(
            subject.place("draft"),
            f"the method {name} loads no draft, so this one is downloaded for nothing",
            f"method: {name}",
            "a method that uses a draft, such as eagle3",
            "remove draft, or change the method",
        )


@catalogue.rule(
    "speculation-without-draft",
    "error",
    "A method that needs a draft has one, named and pinned under draft.",
    "the recipe schema: draft; mtp, ngram and suffix need none",
)
def draft_missing(subject: Subject) -> Iterator[Problem]:
    name = method(subject)
    if name and not draftless(name) and "draft" not in subject.variant:
        yield Problem(
            subject.place("arguments", "speculative-config"),
            f"the method {name} drafts with a model of its own, and the variant names none",
            "no draft",
            "draft: {repository: ..., revision: ...}",
            "name the draft's repository and revision under draft",
        )


@catalogue.rule(
    "draft-model-by-hand",
    "error",
    "speculative-config does not name the draft itself: a repository named there is fetched unpinned and unchecked.",
    "the recipe schema: the resolver puts the draft's place into speculative-config",
)
def model_by_hand(subject: Subject) -> Iterator[Problem]:
    # vLLM itself writes `model: ngram` for a method without a model; that is no repository.
    value = subject.speculation.get("model")
    if value is not None and text_of(value).strip("[]").lower() != method(subject):
        yield Problem(
            subject.place("arguments", "speculative-config", "model"),
            "the draft is named in the arguments, where nothing pins, downloads or checks it",
            text_of(value),
            "draft: {repository: ..., revision: ...}",
            "move it to draft; its place is put into speculative-config when the unit is made",
        )


@catalogue.rule(
    "draft-check-missing",
    "error",
    "A variant with a draft has the check draft: a draft that accepts nothing fails silently.",
    "the Spark page, Troubleshooting; vllm PR#36527: EAGLE3 on Qwen3-Next was useless without any error",
)
def check_missing(subject: Subject) -> Iterator[Problem]:
    name = method(subject)
    needs = "draft" in subject.variant or in_checkpoint(name)
    if needs and name and not any(checks(subject, "draft")):
        yield Problem(
            subject.place("checks"),
            "nothing measures whether drafted tokens are accepted; a useless draft only makes decode slower",
            "no check draft",
            "- {check: draft, acceptance_min: ...}",
            "add the check draft with a floor just below the acceptance that was measured",
        )


@catalogue.rule(
    "draft-check-without-speculation",
    "error",
    "The check draft is asked only of a server that drafts.",
    "the check draft reads spec_decode counters, which there are none of without speculative decoding",
)
def check_without(subject: Subject) -> Iterator[Problem]:
    if "speculative-config" not in subject.arguments:
        for index, _check in checks(subject, "draft"):
            yield Problem(
                subject.place("checks", index),
                "measures drafted tokens, and this server drafts none",
                "no speculative-config",
                "arguments.speculative-config",
                "remove the check, or add speculative-config",
            )


@catalogue.rule(
    "draft-acceptance-floor",
    "error",
    "The check draft can fail: its floor is above 0.",
    "the Spark page, Troubleshooting: require it to be well above zero",
)
def acceptance_floor(subject: Subject) -> Iterator[Problem]:
    for index, check in checks(subject, "draft"):
        low = number_of(check.get("acceptance_min"))
        if low is not None and low <= 0:
            yield Problem(
                subject.place("checks", index, "acceptance_min"),
                "a draft that accepts nothing passes this check",
                text_of(check["acceptance_min"]),
                "a share well above 0, such as 0.55",
                "set it just below the acceptance that was measured",
            )


@catalogue.rule(
    "draft-depth",
    "note",
    "num_speculative_tokens is at most 3, unless a sweep on this model says otherwise.",
    "the Spark page: tokens per step saturate at about 2.3 by 3, throughput is below the baseline at 4 and 5",
)
def depth(subject: Subject) -> Iterator[Problem]:
    found = number_of(subject.speculation.get("num_speculative_tokens"))
    # These draft all positions at once, so that depth costs them next to nothing.
    if (
        found is not None
        and found > PLATEAU
        and not method(subject).startswith(("dflash", "dspark", "ngram", "suffix"))
    ):
        yield Problem(
            subject.place("arguments", "speculative-config", "num_speculative_tokens"),
            "so deep a draft usually costs more than it brings; the last positions are hardly ever accepted",
            text_of(subject.speculation["num_speculative_tokens"]),
            f"1 to {PLATEAU}",
            "measure 1, 2 and 3 with long prompts too; of equal ones take the smallest",
        )


@catalogue.rule(
    "prefix-caching-with-draft",
    "warning",
    "Prefix caching and drafts go together on a Gated DeltaNet model only where the check prefix_cache proves it.",
    "vllm#47194, vllm#43559, vllm#54360: wrong hits or none",
)
def caching_and_drafts(subject: Subject) -> Iterator[Problem]:
    proven = any(checks(subject, "prefix_cache"))
    if subject.speculation and gated_delta(subject) and prefix_caching(subject) and not proven:
        yield Problem(
            subject.place("arguments", "enable-prefix-caching"),
            "prefix-cache hits on Gated DeltaNet layers are wrong or absent while tokens are drafted",
            "prefix caching with speculative-config",
            "one of the two",
            "set enable-prefix-caching: false or remove the draft, or prove both with the check prefix_cache",
        )


@catalogue.rule(
    "ngram-on-gated-delta",
    "error",
    "ngram drafts are not used on a Gated DeltaNet model, whose state a rejected draft corrupts.",
    "measured by the authors of a GB10 stack: captured answers diverge with ngram drafts",
)
def ngram(subject: Subject) -> Iterator[Problem]:
    if method(subject).startswith("ngram") and gated_delta(subject):
        yield Problem(
            subject.place("arguments", "speculative-config", "method"),
            "ngram drafts corrupt the recurrent state of Gated DeltaNet layers, and with it the answers",
            method(subject),
            "a trained draft such as eagle3, or none",
            "remove speculative-config, or name a draft",
        )


RULES = tuple(catalogue)
