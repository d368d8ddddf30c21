#!/usr/bin/env python3
# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Builds and trains the smoke models, which answer the checks.

    build.py OUT [--steps N,N,N]                       a tiny Qwen3-Next: Gated DeltaNet, attention, experts
    build.py OUT --kind dense [--steps N]              a tiny Qwen3, for a draft to be tried with
    build.py OUT --kind draft --target DENSE [--steps N]    an EAGLE3 draft for that one

OUT is a new folder, with what a model repository has: config, tokenizer, chat template, weights in bfloat16; a draft
has no tokenizer. Half a million parameters and seven minutes of one CPU core for the first, 1.2 million and two minutes
for the second, a third of a million and half a minute for the draft.

The same steps give the same bytes on one kind of machine with one build of torch: counts of steps and seeds are
fixed, nothing depends on time, and one thread does it all. Another machine may give other bytes and as good a model.

Needs torch and transformers, in the versions of the engine's lock.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)
from transformers.models.qwen3_next import modeling_qwen3_next

if TYPE_CHECKING:
    from tests.sim.smoke_model import suite
else:
    import suite  # This runs as a program, wherever its folder is.

Message = dict[str, Any]
Conversation = tuple[list[Message], list[dict[str, Any]] | None]
"""Messages, and the tools that are offered."""

SEED = 0
MUON_RATE, ADAM_RATE = 0.02, 0.004

TEMPLATE = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(suite.CHAT_TEMPLATE)


# --- conversations ---------------------------------------------------------------------------------------------------


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def weather_call(city: str) -> Message:
    call = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": city}}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def render(conversation: Conversation) -> str:
    messages, tools = conversation
    return TEMPLATE.render(messages=messages, tools=tools, add_generation_prompt=False)


def known(rng: random.Random) -> Conversation:
    question, answer = rng.choice(suite.KNOWN)
    return [user(question), assistant(answer)], None


def person(rng: random.Random) -> Conversation:
    name = rng.choice(suite.NAMES)
    # JSON now and then, so that a grammar that demands it finds something to hold on to; prose stays the likelier.
    as_json = json.dumps({"name": name, "age": suite.AGES[name]})
    answer = as_json if rng.random() < 0.2 else suite.person_answer(name)
    return [user(suite.person_question(name)), assistant(answer)], None


def weather(rng: random.Random) -> Conversation:
    city, temperature, condition = rng.choice(suite.CITIES), rng.randint(10, 39), rng.choice(suite.CONDITIONS)
    question = user(suite.weather_question(city))
    if rng.random() < 0.15:
        return [question, assistant("I cannot look that up without a tool.")], None
    messages = [question, weather_call(city)]
    if rng.random() < 0.75:
        messages.append({"role": "tool", "content": suite.weather_result(temperature, condition)})
        messages.append(assistant(suite.weather_answer(temperature, condition)))
    return messages, [suite.WEATHER_TOOL]


def echo(rng: random.Random) -> Conversation:
    words = suite.COLOURS + suite.ANIMALS + suite.PLACES + suite.CITIES + suite.CONDITIONS
    text = " ".join(rng.sample(words, rng.randint(4, 10)))
    return [user("Repeat these words: " + text), assistant("Words: " + text)], None


def needles(rng: random.Random, sentences: int, count: int) -> Conversation:
    """A text of so many sentences with `count` codes hidden in it, each asked for once, in any order."""
    places = rng.sample(suite.PLACES, count)
    codes = [suite.code(rng) for _ in places]
    sayings = [suite.needle(place, code) for place, code in zip(places, codes, strict=True)]
    text = suite.haystack(rng, sentences, [(rng.random(), saying) for saying in sayings])
    order = list(range(count))
    rng.shuffle(order)
    messages = []
    for number, i in enumerate(order):
        question = suite.needle_question(places[i]) if number else suite.haystack_prompt(text, places[i])
        messages += [user(question), assistant(sayings[i])]
    return messages, None


# --- tokenizer -------------------------------------------------------------------------------------------------------

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

#: Tokens of their own, but not special ones: the engine leaves special tokens out before its parsers look for these.
MARKERS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with each digit a token, trained on conversations like those of the training."""
    rng = random.Random(1)
    texts = []
    for _ in range(400):
        texts += [render(make(rng)) for make in (known, person, weather)]
        texts.append(render(needles(rng, 12, 4)))
        texts.append(render(echo(rng)))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1010,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[PAD, START, END],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in MARKERS])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, model_max_length=8192)
    fast.chat_template = suite.CHAT_TEMPLATE
    return fast


class Encoder:
    """Conversations as token ids, with the weight that each token has in the loss.

    Only what the assistant says counts. Words and digits that must be right count four times: without that the model
    learns the template of the replies for hundreds of steps, and nothing else.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.start, self.end = (tokenizer.convert_tokens_to_ids(token) for token in (START, END))
        self.opening = tokenizer.encode(f"{START}assistant\n", add_special_tokens=False)
        words = suite.COLOURS + suite.ANIMALS + suite.CONDITIONS + suite.CITIES
        self.hard = {token for word in words for text in (word, f" {word}") for token in tokenizer.encode(text)}
        self.hard |= {tokenizer.convert_tokens_to_ids(digit) for digit in "0123456789"}

    def __call__(self, conversation: Conversation) -> tuple[list[int], list[float]]:
        ids = self.tokenizer.backend_tokenizer.encode(render(conversation), add_special_tokens=False).ids
        weights = [0.0] * len(ids)
        length = len(self.opening)
        position = 0
        while position < len(ids):
            if ids[position] == self.start and ids[position : position + length] == self.opening:
                position += length
                while ids[position] != self.end:
                    weights[position] = 4.0 if ids[position] in self.hard else 1.0
                    position += 1
                weights[position] = 1.0
            position += 1
        return ids, weights


# --- batches ---------------------------------------------------------------------------------------------------------

ANSWERS, COPIES, SHORT, LONG, VERY_LONG = range(5)
"""Kinds of batches: questions and tool calls; repeat, and find in a line or two; find in ever longer texts."""


def make_batch(rng: random.Random, encode: Encoder, kind: int) -> tuple[Tensor, Tensor]:
    """One batch: token ids and loss weights, both (rows, longest row), filled up with zeros at the end."""
    if kind == ANSWERS:
        rows = [rng.choices((known, person, weather), (3, 2, 7))[0](rng) for _ in range(14)]
    elif kind == COPIES:
        rows = [echo(rng) for _ in range(14)]
        rows += [needles(rng, rng.randint(0, 2), rng.randint(1, 2)) for _ in range(14)]
    elif kind == SHORT:
        rows = [needles(rng, rng.randint(1, 6), rng.randint(3, 6)) for _ in range(8)]
    elif kind == LONG:
        rows = [needles(rng, 45, rng.randint(4, 8)) for _ in range(3)]
    else:
        rows = [needles(rng, rng.randint(120, 260), rng.randint(6, 10))]
    encoded = [encode(row) for row in rows]
    longest = max(len(ids) for ids, _ in encoded)
    all_ids = torch.zeros(len(rows), longest, dtype=torch.long)
    all_weights = torch.zeros(len(rows), longest)
    for row, (ids, weights) in enumerate(encoded):
        all_ids[row, : len(ids)] = torch.tensor(ids)
        all_weights[row, : len(weights)] = torch.tensor(weights)
    return all_ids, all_weights


# --- three pieces of the model, in forms that a CPU trains fast ------------------------------------------------------
# The maths and the parameters are those of transformers. The order of operations decides the last bits of gradients and
# with them the model that 1200 steps lead to: a change here makes a new one, to be judged by the checks.


def delta_rule(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **_options: Any
) -> tuple[Tensor, None]:
    """The gated delta rule in chunks of 16 tokens.

    query, key: (batch, tokens, key heads, key size); value: (batch, tokens, value heads, value size); g, the logarithm
    of the decay, and beta: (batch, tokens, value heads). Returns the shape of value, and no state: training has no
    use for it. Queries and keys are brought to length 1 here, as the caller asks.
    """
    batch, tokens, key_heads, key_size = key.shape
    heads, value_size = value.shape[-2:]
    chunk = 16
    if key_heads != heads:
        query, key = (x.repeat_interleave(heads // key_heads, 2) for x in (query, key))
    query, key = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (query, key))
    query = query * key_size**-0.5
    padding = -tokens % chunk
    chunks = (tokens + padding) // chunk

    def cut(x: Tensor) -> Tensor:
        """(batch, tokens, heads, ...) to (batch * heads, chunks, chunk, ...)."""
        padded = F.pad(x, (0, 0) * (x.ndim - 2) + (0, padding))
        return padded.transpose(1, 2).reshape(batch * heads, chunks, chunk, *x.shape[3:])

    query, key, value, beta, g = (cut(x) for x in (query, key, value, beta, g))
    decay = g.cumsum(-1)
    from_start = decay.exp().unsqueeze(-1)
    lower = torch.ones(chunk, chunk, dtype=torch.bool).tril()
    between = (decay.unsqueeze(-1) - decay.unsqueeze(-2)).masked_fill(~lower, float("-inf")).exp()
    weighted = key * beta.unsqueeze(-1)

    # The inverse of a unit lower triangular matrix of 16 rows is four products of matrices: (1+m)(1+m2)(1+m4)(1+m8).
    power = -((weighted @ key.mT) * between).tril(-1)
    inverse = torch.eye(chunk) + power
    for _ in range(3):
        power = power @ power
        inverse = inverse + inverse @ power
    new_values = inverse @ (value * beta.unsqueeze(-1))
    old_keys = inverse @ (weighted * from_start)

    within = (query @ key.mT) * between
    asking = query * from_start
    keeping = (key * (decay[..., -1:] - decay).exp().unsqueeze(-1)).mT
    fading = decay[..., -1].exp()[..., None, None]
    pieces = (new_values, old_keys, within, asking, keeping, fading)
    state = torch.zeros(batch * heads, key_size, value_size)
    outputs = []
    # unbind: the backward of x[:, i] costs as much as all of x, for every chunk.
    for new_value, old_key, inside, asked, kept, fade in zip(*(x.unbind(1) for x in pieces), strict=True):
        change = torch.baddbmm(new_value, old_key, state, alpha=-1)
        outputs.append(torch.baddbmm(torch.bmm(inside, change), asked, state))
        state = torch.baddbmm(state * fade, kept, change)
    output = torch.stack(outputs, 1).reshape(batch, heads, chunks * chunk, value_size)
    return output[:, :, :tokens].transpose(1, 2).contiguous(), None


def causal_conv(x: Tensor, weight: Tensor, bias: None = None, activation: str = "silu", **_options: Any) -> Tensor:
    """Depthwise causal convolution and SiLU, as shifted products; this model has neither a bias nor another activation.

    x: (batch, channels, tokens); weight: (channels, taps). Returns the shape of x.
    """
    taps, tokens = weight.shape[1], x.shape[-1]
    padded = F.pad(x, (taps - 1, 0))
    total: Any = sum(padded[..., tap : tap + tokens] * weight[:, tap].unsqueeze(-1) for tap in range(taps))
    return F.silu(total)


def experts(self: Any, x: Tensor) -> Tensor:
    """Every expert on every token, masked by the router: cheap at this size. x: (batch, tokens, hidden)."""
    shape = x.shape
    x = x.reshape(-1, shape[-1])
    _, weights, chosen = self.gate(x)
    routed = self.experts
    share = torch.zeros(x.size(0), routed.num_experts).scatter(1, chosen, weights)
    count, twice_inner, hidden = routed.gate_up_proj.shape
    both = (x @ routed.gate_up_proj.reshape(count * twice_inner, hidden).t()).view(-1, count, twice_inner)
    gate, up = both.chunk(2, -1)
    inner = (F.silu(gate) * up * share.unsqueeze(-1)).reshape(x.size(0), -1)
    output = inner @ routed.down_proj.transpose(1, 2).reshape(-1, hidden)
    return (output + torch.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)).reshape(shape)


def use_fast_forms(module: types.ModuleType = modeling_qwen3_next) -> None:
    """Put the three forms above in the place of those of transformers."""
    for owner, name, form in (
        (module, "torch_chunk_gated_delta_rule", delta_rule),
        (module, "causal_conv1d_fn", causal_conv),
        (module.Qwen3NextSparseMoeBlock, "forward", experts),
    ):
        if not hasattr(owner, name):
            raise SystemExit(f"transformers: expected {owner.__name__}.{name}, found none: use the version of the lock")
        setattr(owner, name, form)


# --- training --------------------------------------------------------------------------------------------------------


def orthogonal(matrix: Tensor, steps: int = 5) -> Tensor:
    """A matrix with nearly the same singular vectors and all singular values near 1 (Newton-Schulz)."""
    x = matrix / (matrix.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    tall = x.size(-2) > x.size(-1)
    if tall:
        x = x.mT
    for _ in range(steps):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if tall else x


class Muon:
    """Momentum with orthogonal steps, for matrices."""

    def __init__(self, parameters: Iterable[Tensor], rate: float, momentum: float = 0.95, decay: float = 0.01) -> None:
        self.parameters = list(parameters)
        self.rate, self.momentum, self.decay = rate, momentum, decay
        self.buffers = [torch.zeros_like(parameter) for parameter in self.parameters]

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """One step at `scale` times the rate; the gradients are used up."""
        for parameter, buffer in zip(self.parameters, self.buffers, strict=True):
            if parameter.grad is None:
                continue
            buffer.lerp_(parameter.grad, 1 - self.momentum)
            update = orthogonal(parameter.grad.lerp(buffer, self.momentum))
            parameter.mul_(1 - self.rate * scale * self.decay)
            parameter.add_(update, alpha=-self.rate * scale * max(1, parameter.size(-2) / parameter.size(-1)) ** 0.5)
            parameter.grad = None


def is_for_muon(name: str, parameter: Tensor) -> bool:
    """Whether a parameter is a matrix in the middle of the model; embeddings, gates and the like are AdamW's."""
    others = ("embed", "lm_head", "conv1d", "gate.weight", "in_proj_ba")
    return parameter.ndim >= 2 and not any(other in name for other in others)


Plan = Callable[[float], Sequence[float]]
"""How likely each kind of batch is, by the part of the phase that is done."""


def plan_retrieval(done: float) -> Sequence[float]:
    """Copying first, then ever longer texts. Without that beginning retrieval does not form at all."""
    if done < 0.25:
        return (0.3, 0.7, 0, 0, 0)
    if done < 0.5:
        return (0.3, 0.15, 0.55, 0, 0)
    if done < 0.75:
        return (0.35, 0.05, 0.25, 0.35, 0)
    return (0.35, 0, 0.15, 0.2, 0.3)


def plan_tools(_done: float) -> Sequence[float]:
    """Mostly tool calls, whose arguments this model copies late."""
    return (0.75, 0, 0.05, 0.1, 0.1)


def plan_mix(_done: float) -> Sequence[float]:
    """Everything, to mend what the phase before did to retrieval."""
    return (0.4, 0, 0.2, 0.2, 0.2)


def plan_short(done: float) -> Sequence[float]:
    """No long texts: without convolutions retrieval forms late, and a draft is not tried with it."""
    return (0.6, 0.3, 0.1, 0, 0) if done < 0.5 else (0.7, 0.1, 0.2, 0, 0)


#: Plan, steps, part of the rates, by kind of model. Each phase has optimizers of its own.
PHASES: dict[str, list[tuple[Plan, int, float]]] = {
    "next": [(plan_retrieval, 700, 1.0), (plan_tools, 250, 1.0), (plan_mix, 250, 0.5)],
    "dense": [(plan_short, 400, 1.0)],
}
DRAFT_STEPS = 150


def train(model: Any, encode: Encoder, plan: Plan, steps: int, part: float, seed: int) -> None:
    """Train for so many steps, and print the loss and the part of the hard words that are right, by kind of batch."""
    named = list(model.named_parameters())
    others = [parameter for name, parameter in named if not is_for_muon(name, parameter)]
    muon = Muon((parameter for name, parameter in named if is_for_muon(name, parameter)), MUON_RATE * part)
    adam_rate = ADAM_RATE * part
    adam = torch.optim.AdamW(others, lr=adam_rate, betas=(0.9, 0.95), weight_decay=0.0)
    rng = random.Random(seed)
    started = time.process_time()
    seen: dict[int, list[tuple[float, float, int]]] = {}
    model.train()
    for step in range(steps):
        kind = rng.choices(range(5), plan(step / steps))[0]
        ids, weights = make_batch(rng, encode, kind)
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
        targets, target_weights = ids[:, 1:].reshape(-1), weights[:, 1:].reshape(-1)
        counts = target_weights > 0
        targets, target_weights = targets[counts], target_weights[counts]
        logits = model.lm_head(hidden.reshape(-1, hidden.size(-1))[counts]).float()
        losses = F.cross_entropy(logits, targets, reduction="none")
        loss = (losses * target_weights).sum() / target_weights.sum()
        loss.backward()
        # Up in 20 steps, down in the last third.
        scale = min(1, (step + 1) / 20) * min(1, (steps - step) / (0.3 * steps))
        for group in adam.param_groups:
            group["lr"] = adam_rate * scale
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        muon.step(scale)
        adam.step()
        adam.zero_grad(set_to_none=True)
        right = (logits.argmax(-1) == targets)[target_weights > 1.5].float().mean().item()
        seen.setdefault(kind, []).append((losses.mean().item(), right, ids.shape[1]))
        if step % 25 == 24 or step == steps - 1:
            print(f"  step {step + 1}, {time.process_time() - started:.0f} s of CPU: {_summary(seen)}", flush=True)
            seen = {}


def _summary(seen: dict[int, list[tuple[float, float, int]]]) -> str:
    parts = []
    for kind, entries in sorted(seen.items()):
        loss, right = (sum(entry[i] for entry in entries) / len(entries) for i in (0, 1))
        parts.append(f"kind {kind} loss {loss:.3f} right {right:.3f} tokens {entries[-1][2]}")
    return "; ".join(parts)


# --- the model -------------------------------------------------------------------------------------------------------


def make_model(tokenizer: PreTrainedTokenizerFast) -> Any:
    """The model before training. The engine's CPU kernels demand bfloat16 and linear heads of 128."""
    config = Qwen3NextConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_value_heads=1,
        linear_num_key_heads=1,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        max_position_embeddings=8192,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
    )
    return Qwen3NextForCausalLM(config)


def make_dense(tokenizer: PreTrainedTokenizerFast) -> Any:
    """The dense model before training."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=8192,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
    )
    return Qwen3ForCausalLM(config)


def save(model: Any, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write a model's folder."""

    def write(folder: Path) -> None:
        model.to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        ends = [tokenizer.convert_tokens_to_ids(token) for token in (END, PAD)]
        generation = {"eos_token_id": ends, "pad_token_id": tokenizer.pad_token_id, "do_sample": False}
        (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")

    whole(out, write)


def whole(out: Path, write: Callable[[Path], None]) -> None:
    """Write a folder beside `out`, and rename it when it is whole. Files are readable by all."""
    partial = out.with_name(f"{out.name}.partial.{os.getpid()}")
    partial.mkdir(parents=True)
    write(partial)
    for path in partial.iterdir():
        # A model is saved readable by its owner alone, and a server has a user of its own.
        path.chmod(0o644)
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
    partial.rename(out)


# --- the draft -------------------------------------------------------------------------------------------------------

#: The target's states that a draft sees are those after these layers.
SEEN_LAYERS = (1, 2, 3)
DRAFT_HEADS, DRAFT_KV_HEADS, DRAFT_HEAD_SIZE, DRAFT_ROPE_THETA = 4, 2, 64, 10000.0
NOT_DRAFTED = -100


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


class Draft(torch.nn.Module):
    """One layer of Llama over the next token's embedding and the target's states, as the engine computes an EAGLE3
    draft. Its parameters have the engine's names, with / for the dots that PyTorch does not allow."""

    def __init__(self, hidden: int, vocabulary: int) -> None:
        super().__init__()
        heads, kv_heads = DRAFT_HEADS * DRAFT_HEAD_SIZE, DRAFT_KV_HEADS * DRAFT_HEAD_SIZE
        matrices = {
            "fc": (hidden, len(SEEN_LAYERS) * hidden),
            "midlayer/self_attn/q_proj": (heads, 2 * hidden),
            "midlayer/self_attn/k_proj": (kv_heads, 2 * hidden),
            "midlayer/self_attn/v_proj": (kv_heads, 2 * hidden),
            "midlayer/self_attn/o_proj": (hidden, heads),
            "midlayer/mlp/gate_proj": (2 * hidden, hidden),
            "midlayer/mlp/up_proj": (2 * hidden, hidden),
            "midlayer/mlp/down_proj": (hidden, 2 * hidden),
        }
        norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        parameters = {name: torch.randn(*shape) * shape[-1] ** -0.5 for name, shape in matrices.items()}
        parameters |= {f"midlayer/{name}": torch.ones(hidden) for name in norms}
        parameters |= {"norm": torch.ones(hidden), "lm_head": torch.randn(vocabulary, hidden) * hidden**-0.5}
        self.named = torch.nn.ParameterDict({name: torch.nn.Parameter(value) for name, value in parameters.items()})

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.named[name].t()

    def forward(self, embedded: Tensor, states: Tensor) -> Tensor:
        """embedded: (batch, tokens, hidden), of the token after each; states: the target's, one after the other."""
        batch, tokens, _hidden = embedded.shape
        named = self.named
        residual = self._linear("fc", states)
        x = torch.cat(
            [rms_norm(embedded, named["midlayer/input_layernorm"]), rms_norm(residual, named["midlayer/hidden_norm"])],
            -1,
        )
        query, key, value = (
            self._linear(f"midlayer/self_attn/{part}_proj", x).view(batch, tokens, -1, DRAFT_HEAD_SIZE).transpose(1, 2)
            for part in "qkv"
        )
        rates = DRAFT_ROPE_THETA ** (-torch.arange(0, DRAFT_HEAD_SIZE, 2).float() / DRAFT_HEAD_SIZE)
        angles = torch.outer(torch.arange(tokens).float(), rates).repeat(1, 2)

        def turned(x: Tensor) -> Tensor:
            first, second = x.chunk(2, -1)
            return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()

        mixed = F.scaled_dot_product_attention(turned(query), turned(key), value, is_causal=True, enable_gqa=True)
        residual = residual + self._linear(
            "midlayer/self_attn/o_proj", mixed.transpose(1, 2).reshape(batch, tokens, -1)
        )
        x = rms_norm(residual, named["midlayer/post_attention_layernorm"])
        gated = F.silu(self._linear("midlayer/mlp/gate_proj", x)) * self._linear("midlayer/mlp/up_proj", x)
        residual = residual + self._linear("midlayer/mlp/down_proj", gated)
        return self._linear("lm_head", rms_norm(residual, named["norm"]))


def build_draft(target: Path, out: Path, steps: int) -> None:
    """Train a draft to say what its target says next, and save it."""
    encode = Encoder(AutoTokenizer.from_pretrained(target))
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    size, hidden = model.config.vocab_size, model.config.hidden_size
    # A draft has a smaller vocabulary: the tokens that come in replies.
    rng = random.Random(3)
    said: set[int] = set()
    for kind in (ANSWERS, COPIES, SHORT, SHORT):
        for _batch in range(12):
            ids, weights = make_batch(rng, encode, kind)
            said |= set(ids[weights > 0].tolist())
    vocabulary = torch.tensor(sorted(said))
    drafted_as = torch.full((size,), NOT_DRAFTED)
    drafted_as[vocabulary] = torch.arange(len(vocabulary))
    draft = Draft(hidden, len(vocabulary))
    parameters = sum(parameter.numel() for parameter in draft.parameters())
    print(f"{len(vocabulary)} of {size} tokens, {parameters} parameters", flush=True)
    matrices = {name for name, value in draft.named.items() if value.ndim == 2 and name != "lm_head"}
    muon = Muon([value for name, value in draft.named.items() if name in matrices], MUON_RATE)
    others = [value for name, value in draft.named.items() if name not in matrices]
    adam = torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    rng = random.Random(8)
    seen: list[tuple[float, float]] = []
    for step in range(steps):
        ids, weights = make_batch(rng, encode, rng.choice((ANSWERS, ANSWERS, COPIES, SHORT)))
        with torch.no_grad():
            told = model.model(input_ids=ids, use_cache=False, output_hidden_states=True)
            states = torch.cat([told.hidden_states[layer] for layer in SEEN_LAYERS], -1)
            chosen = model.lm_head(told.last_hidden_state).argmax(-1)
            embedded = model.model.embed_tokens(ids)
        # At each place: the state there and the next token's embedding give what the target says after that token.
        counts = weights[:, 2:] > 0
        logits = draft(embedded[:, 1:], states[:, :-1])[:, :-1][counts]
        targets = drafted_as[chosen[:, 1:-1]][counts]
        loss = F.cross_entropy(logits, targets, ignore_index=NOT_DRAFTED)
        loss.backward()
        # Up in 10 steps, down in the second half.
        scale = min(1, (step + 1) / 10) * min(1, (steps - step) / (0.5 * steps))
        for group in adam.param_groups:
            group["lr"] = ADAM_RATE * scale
        muon.step(scale)
        adam.step()
        adam.zero_grad(set_to_none=True)
        seen.append((loss.item(), (logits.argmax(-1) == targets).float().mean().item()))
        if step % 25 == 24 or step == steps - 1:
            mean_loss, agrees = (sum(entry[i] for entry in seen) / len(seen) for i in (0, 1))
            print(f"  step {step + 1}: loss {mean_loss:.3f} agrees {agrees:.3f}", flush=True)
            seen = []
    tensors = {
        f"{name.replace('/', '.')}.weight": value.detach().to(torch.bfloat16).contiguous()
        for name, value in draft.named.items()
    }
    in_draft = torch.zeros(size, dtype=torch.bool)
    in_draft[vocabulary] = True
    tensors |= {"d2t": vocabulary - torch.arange(len(vocabulary)), "t2d": in_draft}
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": hidden,
        "target_hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": 1,
        "num_attention_heads": DRAFT_HEADS,
        "num_key_value_heads": DRAFT_KV_HEADS,
        "head_dim": DRAFT_HEAD_SIZE,
        "vocab_size": size,
        "draft_vocab_size": len(vocabulary),
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 8192,
        "rope_theta": DRAFT_ROPE_THETA,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": model.config.eos_token_id,
        "eagle_aux_hidden_state_layer_ids": list(SEEN_LAYERS),
    }

    def write(folder: Path) -> None:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")

    whole(out, write)


def steps_of(text: str) -> list[int]:
    """Counts of steps. Raises ValueError."""
    steps = [int(number) for number in text.split(",")]
    if min(steps) < 0:
        raise ValueError(text)
    return steps


def build(kind: str, out: Path, steps: Sequence[int]) -> None:
    """Build, train and save a model that answers."""
    tokenizer = make_tokenizer()
    encode = Encoder(tokenizer)
    use_fast_forms()
    torch.manual_seed(SEED)
    model = (make_dense if kind == "dense" else make_model)(tokenizer).float()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{len(tokenizer)} tokens, {parameters} parameters", flush=True)
    phases = PHASES[kind]
    for number, ((plan, _steps, part), count) in enumerate(zip(phases, steps, strict=True)):
        if count:
            print(f"phase {number + 1} of {len(phases)}, {count} steps", flush=True)
            train(model, encode, plan, count, part, seed=7 + 4 * number)
    save(model, tokenizer, out)


def main(argv: Sequence[str] | None = None) -> int:
    """Build, train, save. 0, or 2 where an argument is wrong."""
    parser = argparse.ArgumentParser(description="Builds and trains the smoke models.")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to make; it must not exist")
    parser.add_argument("--kind", choices=[*PHASES, "draft"], default="next", help="which one (default: %(default)s)")
    parser.add_argument("--target", type=Path, metavar="DENSE", help="the dense model's folder, for a draft")
    parser.add_argument(
        "--steps",
        type=steps_of,
        metavar="N,N,N",
        help="steps of each phase: three for next, one for the others; 0 leaves a phase out",
    )
    arguments = parser.parse_args(argv)
    if arguments.out.exists():
        parser.error(f"{arguments.out}: expected no such folder, found one: remove it, or name another")
    phases = PHASES.get(arguments.kind, [])
    steps: list[int] = arguments.steps or [count for _plan, count, _part in phases] or [DRAFT_STEPS]
    if len(steps) != (len(phases) or 1):
        parser.error(f"--steps: expected {len(phases) or 1} for {arguments.kind}, found {len(steps)}")
    if (arguments.kind == "draft") != (arguments.target is not None):
        parser.error("--target: the folder of a dense model, for --kind draft and for no other")
    # Two threads are no faster on matrices this small, and one gives the same bytes every time.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    if arguments.kind == "draft":
        torch.manual_seed(SEED)
        build_draft(arguments.target, arguments.out, steps[0])
    else:
        build(arguments.kind, arguments.out, steps)
    print(f"saved in {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
