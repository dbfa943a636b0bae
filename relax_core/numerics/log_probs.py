"""From the last hidden states to log-probs, without the logits of more than a few tokens at a time.

Neither `functional.linear_cross_entropy` nor Liger's fused kernel serves here, though both chunk: they take the gradient
of the weight in the forward, summed over the tokens, and each token of a policy loss has a factor that only the backward
knows (for Liger the result was silently wrong: linkedin/Liger-Kernel#1298). Neither gives entropies either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from relax_core.numerics import sizes

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
    None. Both are differentiable in `hidden`, `weight` and `bias`; forward and backward work on `chunk_tokens` tokens at
    a time (default: those of `sizes.chunk_tokens`), and the backward computes a second time what is beyond
    `KEPT_LOGITS` (with a transform, all of it).
    """
    operands = _operands(hidden, *_below(vocabulary, weight, bias))
    size = chunk_tokens or sizes.chunk_tokens(len(operands[1]))
    ids = token_ids if token_ids.dim() == 2 else token_ids[:, None]
    if logit_transform is None:
        log_probs, entropies = _LogProbs.apply(*operands, ids, temperature, entropy, size)  # type: ignore[no-untyped-call]
    else:
        log_probs, entropies = _transformed(operands, ids, temperature, entropy, size, logit_transform)
    return log_probs.reshape(token_ids.shape), entropies


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
    weight, bias = _below(vocabulary, weight, bias)
    tops = [
        (logits_of(states, weight, bias, logit_transform) / temperature).log_softmax(-1).topk(count)
        for states in torch.split(hidden, chunk_tokens or sizes.chunk_tokens(len(weight)))
    ]
    return torch.cat([top.indices for top in tops]), torch.cat([top.values for top in tops])


def logits_of(hidden: Tensor, weight: Tensor, bias: Tensor | None, logit_transform: LogitTransform | None) -> Tensor:
    """[T, V] in float32 (float64 for float64), after the transform."""
    logits = functional.linear(hidden, weight, bias)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits if logit_transform is None else logit_transform(logits)


def _below(vocabulary: int | None, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """As they are where all ids count: the gradient of a slice is a copy of the whole."""
    if vocabulary is None:
        return weight, bias
    return weight[:vocabulary], None if bias is None else bias[:vocabulary]


def _operands(*operands: Tensor | None) -> list[Any]:
    """In the type that autocast has a product in: it does not reach into the backward of a function of one's own."""
    device = next(each for each in operands if each is not None).device.type
    if not torch.is_autocast_enabled(device):
        return list(operands)
    dtype = torch.get_autocast_dtype(device)
    return [each if each is None else each.to(dtype) for each in operands]


@dataclass(frozen=True, slots=True)
class _Head:
    """The log-softmax over the vocabulary, `size` tokens at a time, in two buffers [size, V] that all chunks share."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    temperature: float
    size: int

    def empty(self, *shape: int) -> Tensor:
        """Of the type that the log-probs have."""
        return self.hidden.new_empty(shape, dtype=torch.promote_types(self.hidden.dtype, torch.float32))

    def buffer(self) -> Tensor:
        """For a chunk."""
        return self.empty(min(self.size, len(self.hidden)), len(self.weight))

    def cuts(self) -> Iterator[slice]:
        """The chunks."""
        return (slice(start, start + self.size) for start in range(0, len(self.hidden), self.size))

    def log_probs(self, cut: slice, logits: Tensor, out: Tensor) -> Tensor:
        """Those of a chunk in `out`; `logits` is a buffer."""
        hidden = self.hidden[cut]
        if hidden.dtype != logits.dtype:
            logits.copy_(functional.linear(hidden, self.weight, self.bias))
        elif self.bias is None:
            torch.mm(hidden, self.weight.T, out=logits)
        else:
            torch.addmm(self.bias, hidden, self.weight.T, out=logits)
        logits /= self.temperature
        return torch.log_softmax(logits, -1, out=out)


class _LogProbs(torch.autograd.Function):
    """Log-probs [T, C] of ids [T, C], and entropies [T] or None.

    With p the probabilities, H the entropy, g and e the gradients of the results, that of the logits is
    (Σ_c g_c at the ids c) − p · (Σ g + e · (log p + H)).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor, temperature: float, entropy: bool,
        size: int,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        head = _Head(hidden, weight, bias, temperature, size)
        chosen, entropies = head.empty(*ids.shape), head.empty(len(ids)) if entropy else None
        room = sizes.KEPT_LOGITS if any(ctx.needs_input_grad) else 0
        kept: list[Tensor] = []
        first, second = head.buffer(), head.buffer()
        for cut in head.cuts():
            here = ids[cut]
            keeps = (cut.start + len(here)) * len(weight) <= room
            out = head.empty(len(here), len(weight)) if keeps else second[: len(here)]
            log_probs = head.log_probs(cut, first[: len(here)], out)
            kept += [log_probs] if keeps else []
            torch.gather(log_probs, 1, here, out=chosen[cut])
            if entropies is not None:
                entropies[cut] = -torch.exp(log_probs, out=first[: len(here)]).mul_(log_probs).sum(-1)
        ctx.save_for_backward(hidden, weight, bias, ids, entropies, *kept)
        ctx.temperature, ctx.size = temperature, size
        return chosen, entropies

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, ids, entropies = ctx.saved_tensors[:5]
        kept = ctx.saved_tensors[5:]
        head = _Head(hidden, weight, bias, ctx.temperature, ctx.size)
        gradients = [
            torch.zeros_like(each) if each is not None and wanted else None
            for each, wanted in zip((hidden, weight, bias), ctx.needs_input_grad, strict=False)
        ]
        first, second = head.buffer(), head.buffer()
        for number, cut in enumerate(head.cuts()):
            here = ids[cut]
            probs, spare = first[: len(here)], second[: len(here)]
            log_probs = kept[number] if number < len(kept) else head.log_probs(cut, probs, spare)
            torch.exp(log_probs, out=probs)
            own = None if entropies is None else entropies[cut]
            logits = _logit_gradient(
                log_probs, probs, spare, here, own, *(each[cut] for each in upstream if each is not None)
            )
            _add_products(gradients, head, cut, logits.div_(ctx.temperature))
        return (*gradients, None, None, None, None)


def _logit_gradient(
    log_probs: Tensor,
    probs: Tensor,
    spare: Tensor,
    ids: Tensor,
    entropies: Tensor | None,
    chosen: Tensor,
    entropy: Tensor | None = None,
) -> Tensor:
    """In the buffer `probs`; `spare` may be the buffer of `log_probs`, which are not needed afterwards."""
    total = chosen.sum(-1, keepdim=True)
    if entropies is None or entropy is None:
        probs *= -total
    else:
        factor = entropy[:, None]
        probs *= torch.addcmul(total + factor * entropies[:, None], log_probs, factor, out=spare).neg_()
    return probs.scatter_add_(1, ids, chosen)


def _add_products(gradients: list[Tensor | None], head: _Head, cut: slice, logits: Tensor) -> None:
    """From the gradient of a chunk's logits to those of hidden states, weight and bias."""
    hidden, weight, bias = gradients
    logits = logits.to(head.weight.dtype)
    if hidden is not None:
        torch.mm(logits, head.weight, out=hidden[cut])
    if weight is not None:
        weight.addmm_(logits.T, head.hidden[cut])
    if bias is not None:
        bias += logits.sum(0)


def _transformed(
    operands: list[Any], ids: Tensor, temperature: float, entropy: bool, size: int, transform: LogitTransform
) -> tuple[Tensor, Tensor | None]:
    """The same where something is done to the logits, whose gradient is left to autograd."""
    hidden, weight, bias = operands
    arguments = (weight, bias, temperature, entropy, transform)
    parts = [
        checkpoint(_chunk, states, here, *arguments, use_reentrant=False, preserve_rng_state=False)
        for states, here in zip(torch.split(hidden, size), torch.split(ids, size), strict=True)
    ]
    log_probs, entropies = zip(*parts, strict=True)
    return torch.cat(log_probs), torch.cat(entropies) if entropy else None


def _chunk(
    hidden: Tensor,
    ids: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    temperature: float,
    entropy: bool,
    transform: LogitTransform,
) -> tuple[Tensor, Tensor | None]:
    log_probs = (logits_of(hidden, weight, bias, transform) / temperature).log_softmax(-1)
    return log_probs.gather(-1, ids), -(log_probs.exp() * log_probs).sum(-1) if entropy else None
