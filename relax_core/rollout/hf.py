"""Sampling from a Hugging Face causal LM in this process, on the very weights that the trainer updates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from relax_core.errors import RunError
from relax_core.numerics.head import evaluating, vocabulary_limit
from relax_core.rollout.decoding import attending_to_one, let_grow
from relax_core.rollout.seeds import seed_of
from relax_core.rollout.types import Completion, SamplingParams

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel, PreTrainedTokenizerBase


BLOCK = 128
"""Tokens whose mass is added up before a place among them is looked for."""


class HFSampler:
    """A `RolloutEngine` that decodes a batch in lockstep; each distinct prompt is prefilled once.

    `model` is the trainer's, not a copy. At most `max_batch` sequences are decoded at once (default: all of a call).
    Ids that the tokenizer does not know (a padded output embedding) are never sampled, and the log-probs are those of
    the distribution without them: a trainer has to leave them out too (`vocabulary_limit`), or its log-probs are
    lower by the mass that the model gives to them.
    """

    shares_weights = True

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        version: int = 0,
        max_batch: int | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.version = version
        self.max_batch = max_batch
        self._limit = vocabulary_limit(model, tokenizer)
        self._eos_ids = eos_ids(model, tokenizer)

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, places: Sequence[int] | None = None
    ) -> list[list[Completion]]:
        """`params.n` completions of each prompt (at least one id each), in the order of the prompts.

        A stop token, or the token that completes a stop string, is the last one of its response. The seed and a
        prompt's place decide its samples, whatever else is in the batch; the global generators are not used.
        Raises RunError for a prompt without ids.
        """
        if not all(prompts):
            raise RunError("a prompt has no token ids", who="HFSampler", fix="give each prompt at least one token")
        rows = [tuple(prompt) for prompt in prompts for _ in range(params.n)]
        uniforms = _uniforms(range(len(prompts)) if places is None else places, params).to(self.model.device)
        size = self.max_batch or max(1, len(rows))
        completions: list[Completion] = []
        # Not inference_mode: a buffer that the model sets on the way could not take part in the trainer's backward.
        with torch.no_grad(), evaluating(self.model), attending_to_one(self.model):
            for start in range(0, len(rows), size):
                completions += self._decode(rows[start : start + size], uniforms[start : start + size], params)
        return [completions[start : start + params.n] for start in range(0, len(rows), params.n)]

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Stamp `version`; the weights are the trainer's own, so `weights` may be empty.

        Tensors that are given are copied into the parameters of their names. Raises RunError for a name that the model
        does not have, or another shape.
        """
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        for name, tensor in weights:
            if name not in parameters or parameters[name].shape != tensor.shape:
                raise _unfit(name, tensor, parameters.get(name))
            parameters[name].data.copy_(tensor)
        self.version = version

    def sleep(self) -> None:
        """Nothing: the memory is the trainer's."""

    def close(self) -> None:
        """Nothing: the model is the trainer's."""

    def _decode(self, prompts: list[tuple[int, ...]], uniforms: Tensor, params: SamplingParams) -> list[Completion]:
        stop_ids = torch.tensor([*self._eos_ids, *params.stop_token_ids], dtype=torch.long, device=uniforms.device)
        window = 1 + max((len(text.encode()) for text in params.stop), default=0)
        tokens = torch.zeros_like(uniforms, dtype=torch.long)
        log_probs = torch.zeros_like(uniforms, dtype=torch.float32)
        lengths = torch.full_like(tokens[:, 0], params.max_new_tokens)
        stopped = torch.zeros_like(lengths, dtype=torch.bool)
        live = self._prefill(prompts)
        for step in range(params.max_new_tokens):
            chosen, chosen_log_probs = draw(live.logits, uniforms[live.rows, step], params)
            tokens[live.rows, step], log_probs[live.rows, step] = chosen, chosen_log_probs
            ends = torch.isin(chosen, stop_ids)
            if params.stop:
                ends |= self._contain(tokens[live.rows, max(0, step + 1 - window) : step + 1], params.stop)
            lengths[live.rows[ends]], stopped[live.rows[ends]] = step + 1, True
            if ends.all() or step + 1 == params.max_new_tokens:
                break
            self._advance(live, chosen, ends)
        columns = zip(tokens.tolist(), log_probs.tolist(), lengths.tolist(), stopped.tolist(), strict=True)
        return [
            Completion(ids[:length], values[:length], "stop" if stop else "length", [self.version] * length)
            for ids, values, length, stop in columns
        ]

    def _prefill(self, prompts: list[tuple[int, ...]]) -> _Live:
        distinct = {prompt: index for index, prompt in enumerate(dict.fromkeys(prompts))}
        device = self.model.device
        width = max(map(len, distinct))
        padded = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in distinct], device=device)
        lengths = torch.tensor([len(prompt) for prompt in distinct], device=device)
        positions = torch.arange(width, device=device) - (width - lengths[:, None])
        mask = (positions >= 0).long()
        logits, cache = self._forward(padded, positions.clamp(min=0), mask, None)
        live = _Live(lengths, lengths, mask, logits, cache)
        live.select(torch.tensor([distinct[prompt] for prompt in prompts], device=device))
        live.rows = torch.arange(len(prompts), device=device)
        let_grow(live.cache)
        return live

    def _advance(self, live: _Live, chosen: Tensor, ends: Tensor) -> None:
        if ends.any():
            going = (~ends).nonzero().squeeze(-1)
            chosen = chosen[going]
            live.select(going)
        live.mask = functional.pad(live.mask, (0, 1), value=1)
        live.logits, live.cache = self._forward(chosen[:, None], live.lengths[:, None], live.mask, live.cache)
        live.lengths = live.lengths + 1

    def _forward(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        """Logits [R, V] after the last of `ids` [R, t] at `positions` [R, t], and the cache with them in it."""
        output = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1, : self._limit], output.past_key_values

    def _contain(self, tails: Tensor, stop: tuple[str, ...]) -> Tensor:
        texts = self.tokenizer.batch_decode(tails.tolist(), clean_up_tokenization_spaces=False)
        return torch.tensor([any(text in decoded for text in stop) for decoded in texts], device=tails.device)


def _uniforms(places: Sequence[int], params: SamplingParams) -> Tensor:
    """[P·n, max_new_tokens] in [0, 1), from a generator for each place."""
    shape = (params.n, params.max_new_tokens)
    generators = [torch.Generator().manual_seed(seed_of(params.seed, place)) for place in places]
    return torch.cat([torch.zeros(0, shape[1], dtype=torch.float64)]
                     + [torch.rand(shape, generator=each, dtype=torch.float64) for each in generators])  # fmt: skip


@dataclass(slots=True)
class _Live:
    """The R sequences that still decode: `rows` of the round, `lengths` in ids [R], `mask` [R, t], `logits` [R, V]."""

    rows: Tensor
    lengths: Tensor
    mask: Tensor
    logits: Tensor
    cache: Cache

    def select(self, index: Tensor) -> None:
        self.rows, self.lengths = self.rows[index], self.lengths[index]
        self.mask, self.logits = self.mask[index], self.logits[index]
        self.cache.batch_select_indices(index)


def draw(logits: Tensor, uniforms: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """A token [R] from each row of `logits` [R, V] by the inverse of its distribution function, and its log-prob [R].

    `uniforms` [R] lie in [0, 1). The distribution is the softmax after temperature, top-k and top-p (`truncate`); a
    token outside it is never returned. At temperature 0 it is the likeliest token, the first of equal ones, with its
    log-prob of the untempered distribution, as vLLM has it. Raises RunError for logits that are not finite.
    """
    if params.temperature == 0:
        return _likeliest(logits.float().log_softmax(-1))
    logits = logits.float() if params.temperature == 1 else logits.float() / params.temperature
    probs = truncate(logits, params.top_k, params.top_p).softmax(-1)
    chosen = _inverse(probs, uniforms)
    return chosen.squeeze(-1), probs.gather(-1, chosen).squeeze(-1).log().clamp(max=0)


def _inverse(probs: Tensor, uniforms: Tensor) -> Tensor:
    """[R, 1] where the running sum of `probs` [R, V] first exceeds `uniforms` [R] of it all: the block, then the place.

    Sums of blocks are rounded: what is looked for inside one is kept inside it, so that no token of no mass is found.
    """
    whole = probs.shape[1] // BLOCK * BLOCK
    sums = [probs[:, :whole].view(len(probs), -1, BLOCK).sum(-1), probs[:, whole:].sum(-1, keepdim=True)]
    ends = torch.cat(sums, -1).double().cumsum(-1)
    if not (ends[:, -1] > 0).all():
        raise _diverged()
    zero = torch.zeros_like(ends[:, -1:])
    wanted = uniforms[:, None] * ends[:, -1:]
    block = torch.searchsorted(ends, wanted, right=True)
    places = block * BLOCK + torch.arange(BLOCK, device=probs.device)
    known = places < probs.shape[1]
    within = (probs.gather(-1, places.clamp(max=probs.shape[1] - 1)).double() * known).cumsum(-1)
    before = torch.cat([zero, ends], -1).gather(-1, block)
    most = within[:, -1:].nextafter(zero)
    return block * BLOCK + torch.searchsorted(within, (wanted - before).clamp(min=0).minimum(most), right=True)


def _likeliest(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    chosen = log_probs.argmax(-1, keepdim=True)
    values = log_probs.gather(-1, chosen)
    if not values.isfinite().all():
        raise _diverged()
    return chosen.squeeze(-1), values.squeeze(-1)


def truncate(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """`logits` [R, V] with -inf outside the `top_k` best and, of those, the fewest that have the mass `top_p`.

    0 and 1 switch them off. Tokens that tie with the last one that is kept are kept.
    """
    if top_k <= 0 and top_p >= 1:
        return logits
    vocabulary = logits.shape[-1]
    best = logits.topk(min(top_k, vocabulary) if top_k > 0 else vocabulary).values
    if top_p < 1:
        probs = best.softmax(-1)
        best = best.masked_fill(probs.cumsum(-1) - probs >= top_p, torch.inf)
    return logits.masked_fill(logits < best.amin(-1, keepdim=True), -torch.inf)


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """The ids that end a response: the generation config's, and the tokenizer's."""
    declared = model.generation_config.eos_token_id
    ids = declared if isinstance(declared, list) else [declared]
    return {token_id for token_id in [*ids, tokenizer.eos_token_id] if token_id is not None}


def _diverged() -> RunError:
    fix = "look for a diverged training step"
    return RunError("the model's logits are not finite", who="HFSampler", fix=fix)


def _unfit(name: str, tensor: Tensor, parameter: Tensor | None) -> RunError:
    has = "no such parameter" if parameter is None else f"one of shape {tuple(parameter.shape)}"
    return RunError(
        f"weight '{name}' of shape {tuple(tensor.shape)} was given; the model has {has}",
        who="HFSampler",
        fix="send the named parameters of a model with the same config",
    )
