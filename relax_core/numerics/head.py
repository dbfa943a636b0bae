"""From the last hidden states to log-probs, without the logits of more than a few tokens at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from relax_core.errors import LoadError
from relax_core.numerics.sizes import CHUNK_LOGITS

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

LogitTransform: TypeAlias = Callable[[Tensor], Tensor]


def token_log_probs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    token_ids: Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    chunk_tokens: int | None = None,
    logit_transform: LogitTransform | None = None,
    vocabulary: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Log-probs in nats of `token_ids` [T] or [T, C] under softmax(transform(hidden weightᵀ + bias) / temperature).

    The first result has the shape of `token_ids`. `hidden` is [T, H], `weight` [V, H], `bias` [V]; `vocabulary` limits
    the softmax to the ids below it. The product is computed in the type of its operands, the rest and the results in
    float32 (float64 for float64). With `entropy` the second result is the entropy [T] of the same distributions, else
    None. Both are differentiable in `hidden`, `weight` and `bias`; forward and backward hold the logits of
    `chunk_tokens` tokens (default: as many as make `CHUNK_LOGITS`), which the backward computes a second time.
    """
    weight, bias = weight[:vocabulary], None if bias is None else bias[:vocabulary]
    size = chunk_tokens or max(1, CHUNK_LOGITS // weight.shape[0])
    # functional.linear_cross_entropy chunks too, but has no entropy and no transform between product and softmax.
    parts = [
        checkpoint(
            _chunk, states, weight, bias, ids, temperature, entropy, logit_transform,
            use_reentrant=False, preserve_rng_state=False,
        )
        for states, ids in zip(torch.split(hidden, size), torch.split(token_ids, size), strict=True)
    ]  # fmt: skip
    log_probs, entropies = zip(*parts, strict=True)
    return torch.cat(log_probs), torch.cat(entropies) if entropy else None


@torch.no_grad()
def top_log_probs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    count: int,
    *,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
    logit_transform: LogitTransform | None = None,
    vocabulary: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The `count` likeliest ids [T, count] and their log-probs [T, count], chunked as in `token_log_probs`; no gradient."""
    weight, bias = weight[:vocabulary], None if bias is None else bias[:vocabulary]
    size = chunk_tokens or max(1, CHUNK_LOGITS // weight.shape[0])
    tops = [
        (_logits(states, weight, bias, logit_transform) / temperature).log_softmax(-1).topk(count)
        for states in torch.split(hidden, size)
    ]
    return torch.cat([top.indices for top in tops]), torch.cat([top.values for top in tops])


def _chunk(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    token_ids: Tensor,
    temperature: float,
    entropy: bool,
    logit_transform: LogitTransform | None,
) -> tuple[Tensor, Tensor | None]:
    log_probs = (_logits(hidden, weight, bias, logit_transform) / temperature).log_softmax(-1)
    chosen = log_probs.gather(-1, token_ids if token_ids.dim() == 2 else token_ids[:, None]).reshape(token_ids.shape)
    return chosen, -(log_probs.exp() * log_probs).sum(-1) if entropy else None


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, logit_transform: LogitTransform | None) -> Tensor:
    logits = functional.linear(hidden, weight, bias)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits if logit_transform is None else logit_transform(logits)


def head_of(model: PreTrainedModel) -> tuple[Tensor, Tensor | None, LogitTransform | None]:
    """Weight [V, H], bias [V] and logit transform of a causal LM, for the last hidden states of `model.base_model`.

    The transform is what the config declares: `final_logit_softcapping` (Gemma), `logit_scale` (Cohere) or
    `logits_scaling` (Granite, a divisor). `check_head` finds what a model does beyond that.
    """
    head = model.get_output_embeddings()
    return head.weight, getattr(head, "bias", None), _declared_transform(model.config.get_text_config())


def _declared_transform(config: PreTrainedConfig) -> LogitTransform | None:
    cap: float | None = getattr(config, "final_logit_softcapping", None)
    scale: float = getattr(config, "logit_scale", 1.0) / getattr(config, "logits_scaling", 1.0)
    if cap is not None:
        return lambda logits: cap * torch.tanh(logits / cap)
    return None if scale == 1.0 else lambda logits: logits * scale


def check_head(model: PreTrainedModel) -> None:
    """Compare `head_of(model)` on the last hidden states of four tokens with the model's own logits.

    Raises LoadError when they differ by more than rounding in the model's type: log-probs would be silently wrong.
    """
    token_ids = torch.arange(4, device=model.device)[None]
    weight, bias, transform = head_of(model)
    with evaluating(model), torch.no_grad():
        expected = model(input_ids=token_ids, use_cache=False).logits
        hidden = model.base_model(input_ids=token_ids, use_cache=False).last_hidden_state
        actual = _logits(hidden, weight, bias, transform).to(expected.dtype)
    tolerance = 4 * torch.finfo(hidden.dtype).eps * float(expected.abs().max())
    if actual.shape != expected.shape or not float((actual - expected).abs().max()) <= tolerance:
        raise LoadError(
            "its logits are not its output embedding applied to its last hidden states",
            who=type(model).__name__,
            fix="use a model that does no more to its logits than its config declares with "
            "final_logit_softcapping, logit_scale or logits_scaling",
        )


def vocabulary_limit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The number of ids that the tokenizer can decode, when the model's output embedding has more rows; else None."""
    known: int = max(tokenizer.get_vocab().values()) + 1
    return known if known < model.get_output_embeddings().weight.shape[0] else None


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode (no dropout) inside the block; afterwards each submodule is in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
