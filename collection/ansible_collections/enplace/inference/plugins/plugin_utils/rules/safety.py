# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Rules of what a recipe must not hold: secrets, code of strangers, and what belongs to the host or the unit."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..lint import Subject
from ..recipe import Problem
from .common import Catalogue, first, strings, truthy

catalogue = Catalogue()

# Names that hold a secret: the word as a part of the name, not followed by what makes it a path or a number.
SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|(?:API|ACCESS|PRIVATE|AUTH|SECRET)_?KEY)(?:_ID)?$",
    re.IGNORECASE,
)
SECRET_ARGUMENT = re.compile(r"^(?:hf-token|.*-(?:api-key|password|passwd|passphrase|secret|access-key|auth-token))$")
# Values that are a secret whatever they are called.
SECRET_VALUE = re.compile(
    r"\bhf_[A-Za-z0-9]{20,}"
    r"|\bsk-[A-Za-z0-9_-]{20,}"
    r"|\bnvapi-[A-Za-z0-9_-]{20,}"
    r"|\bgh[oprsu]_[A-Za-z0-9]{30,}|\bgithub_pat_[A-Za-z0-9_]{30,}|\bglpat-[A-Za-z0-9_-]{20,}"
    r"|\bAKIA[0-9A-Z]{16}\b"
    r"|\bxox[abeprs]-[A-Za-z0-9-]{10,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+"
    r"|://[^/\s:@]+:[^/\s:@$<{]+@"
)
# One of these is in every text that SECRET_VALUE finds, and looking for them is much faster.
SECRET_MARKS = (
    *("hf_", "sk-", "nvapi-", "gho_", "ghp_", "ghr_", "ghs_", "ghu_", "github_pat_", "glpat-", "AKIA", "xox"),
    *("-----BEGIN", "eyJ", "://"),
)
CARD_VARIABLES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HABANA_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES")
NETWORK_VARIABLES = (
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
    "UCX_NET_DEVICES",
    "OMPI_MCA_btl_tcp_if_include",
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "HCCL_SOCKET_IFNAME",
    "VLLM_HOST_IP",
)
# What the unit sets for every server: its own interpreter, its own caches, no network to the hub.
UNIT_VARIABLES = (
    "PATH",
    "HOME",
    "PYTHONPATH",
    "PYTHONHOME",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "HF_ENDPOINT",
    "XDG_CACHE_HOME",
    "VLLM_CACHE_ROOT",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "FLASHINFER_WORKSPACE_BASE",
)
OPEN_DOORS = {
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "lets whoever reaches the engine's sockets run code by pickle",
    "VLLM_SERVER_DEV_MODE": "opens development endpoints, which need no key, in the API",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "lets any client load adapters from the server's disk",
}


def _masked(secret: str) -> str:
    return f"{secret[:4]}... ({len(secret)} characters)"


@catalogue.rule(
    "secret-in-recipe",
    "error",
    "A recipe holds no secret: it is published, and its arguments reach process lists and logs.",
    "docs/recipes.md; vLLM logs its non-default arguments",
)
def secret(subject: Subject) -> Iterator[Problem]:
    todo = "remove it and make it void; tokens and keys are files on the host, named in the inventory"
    named = set()
    for name, value in subject.environment.items():
        if SECRET_NAME.search(name) and value:
            named.add(("environment", name))
            yield Problem(
                subject.place("environment", name), "is a secret by its name", _masked(value), "not in a recipe", todo
            )
    for name, value in subject.arguments.items():
        if SECRET_ARGUMENT.search(name) and isinstance(value, str):
            named.add(("arguments", name))
            yield Problem(
                subject.place("arguments", name), "is a secret by its name", _masked(value), "not in a recipe", todo
            )
    parts: list[tuple[tuple[str | int, ...], object]] = [(("variants", subject.name), subject.variant)]
    if first(subject):
        parts += [(("model",), subject.model), (("sources",), subject.document.data.get("sources", {}))]
    for base, part in parts:
        texts = list(strings(part))
        whole = "\n".join(text for _key, text in texts)
        marks = [mark for mark in SECRET_MARKS if mark in whole]
        for key, text in texts if marks else ():
            match = any(mark in text for mark in marks) and SECRET_VALUE.search(text)
            if match and key[:2] not in named:
                yield Problem(
                    subject.document.place((*base, *key)),
                    "holds what looks like a secret",
                    _masked(match[0].removeprefix("://")),
                    "not in a recipe",
                    todo,
                )


@catalogue.rule(
    "trust-remote-code",
    "warning",
    "trust-remote-code runs Python from the model's repository; it is on only where nothing else loads the model.",
    "vLLM documentation, Security",
)
def remote_code(subject: Subject) -> Iterator[Problem]:
    if truthy(subject.arguments.get("trust-remote-code", False)):
        unpinned = [part for part in ("weights", "draft") if _unpinned(subject, part)]
        todo = "remove it if the engine knows the architecture; else review the code at the pinned revision"
        if unpinned:
            todo = f"remove it, or pin the revision of {' and '.join(unpinned)} and review the code there"
        yield Problem(
            subject.place("arguments", "trust-remote-code"),
            "runs Python of the model's repository with the server's rights",
            "trust-remote-code" + (f" with an unpinned revision ({', '.join(unpinned)})" if unpinned else ""),
            "absent",
            todo,
        )


def _unpinned(subject: Subject, part: str) -> bool:
    return bool(subject.variant.get(part, {}).get("revision") == "unpinned")


@catalogue.rule(
    "insecure-variable",
    "warning",
    "No variable opens what the engine keeps closed.",
    "vLLM documentation, Security",
)
def open_doors(subject: Subject) -> Iterator[Problem]:
    for name, effect in OPEN_DOORS.items():
        if truthy(subject.environment.get(name, "")):
            yield Problem(
                subject.place("environment", name),
                effect,
                f"{name}={subject.environment[name]}",
                "absent",
                "remove the variable",
            )


@catalogue.rule(
    "cards-by-hand",
    "warning",
    "A recipe says how many cards it needs, not which: that differs between hosts.",
    "the recipe schema: count",
)
def cards(subject: Subject) -> Iterator[Problem]:
    for name in CARD_VARIABLES:
        if name in subject.environment:
            yield Problem(
                subject.place("environment", name),
                "names the cards of one host; on another host they are in use, or not there",
                f"{name}={subject.environment[name]}",
                "count: the number of cards",
                "remove the variable and state count",
            )


@catalogue.rule(
    "network-by-hand",
    "warning",
    "Interfaces and addresses are the host's, not the recipe's.",
    "sparkrun#67, #157: a wrong interface or address was taken on another host",
)
def network(subject: Subject) -> Iterator[Problem]:
    for name in NETWORK_VARIABLES:
        if name in subject.environment:
            yield Problem(
                subject.place("environment", name),
                "names an interface or an address of one host",
                f"{name}={subject.environment[name]}",
                "absent",
                "remove it; what differs between hosts is an inventory variable",
            )


@catalogue.rule(
    "unit-variable",
    "error",
    "A recipe does not set what the unit sets: the environment's interpreter, its caches, the hub's cache.",
    "docs/architecture.md: a unit writes only below its own cache directory and never asks the hub",
)
def unit_variables(subject: Subject) -> Iterator[Problem]:
    for name in UNIT_VARIABLES:
        if name in subject.environment:
            yield Problem(
                subject.place("environment", name),
                "is the unit's own: another value makes it run other code, or write where it may not",
                f"{name}={subject.environment[name]}",
                "absent",
                "remove the variable",
            )


RULES = tuple(catalogue)
