# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The checks by name. Each asks the server, returns evidence, or raises CheckFailed.

Each has a control that a server which ignores the feature would not survive: a check that could pass on no evidence
proves nothing.
"""

from __future__ import annotations

from ansible_collections.enplace.inference.plugins.module_utils.verify.answers import KnownAnswers, KnownAnswersInFlight
from ansible_collections.enplace.inference.plugins.module_utils.verify.base import Check, Context
from ansible_collections.enplace.inference.plugins.module_utils.verify.cache import Needles, PrefixCache
from ansible_collections.enplace.inference.plugins.module_utils.verify.engine import (
    Draft,
    Healthy,
    Identity,
    KvPool,
    Libraries,
    LogLine,
    NoErrors,
    Usage,
)
from ansible_collections.enplace.inference.plugins.module_utils.verify.output import (
    JsonSchema,
    LogitBias,
    Logprobs,
    PromptLogprobs,
)
from ansible_collections.enplace.inference.plugins.module_utils.verify.sampling import BadWords, MinP, MinTokens, Seed
from ansible_collections.enplace.inference.plugins.module_utils.verify.tools import (
    ToolCall,
    ToolCallStreamed,
    ToolResult,
)

__all__ = ["CLASSES", "Check", "Context"]

CLASSES: dict[str, type[Check]] = {
    kind.name: kind
    for kind in (
        Identity,
        KnownAnswers,
        KnownAnswersInFlight,
        Logprobs,
        Usage,
        ToolCall,
        ToolCallStreamed,
        ToolResult,
        PromptLogprobs,
        JsonSchema,
        LogitBias,
        MinP,
        MinTokens,
        BadWords,
        Seed,
        PrefixCache,
        Needles,
        Draft,
        KvPool,
        Libraries,
        LogLine,
        NoErrors,
        Healthy,
    )
}
