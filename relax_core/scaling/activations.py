"""What a micro-batch leaves in memory until its backward, and what its head works with. Byte by byte as in docs/scaling.md."""

from __future__ import annotations

from dataclasses import dataclass

from relax_core.numerics.sizes import KEPT_LOGITS, chunk_tokens
from relax_core.scaling.shape import Shape


@dataclass(frozen=True, slots=True)
class Micro:
    """A micro-batch on one rank: its `tokens`, those of them that are `responses`, and how it is computed.

    `itemsize` is that of the products. `keeps_float32`: parameters and norms are float32 all the same, as in the
    embedded engine. `pairs` are cells of an attention mask that is given, 0 where none is. `in_flight` micro-batches
    wait for their backward on this rank at once.
    """

    tokens: int
    responses: int
    itemsize: int
    checkpointing: bool
    keeps_float32: bool = True
    pairs: int = 0
    tensor: int = 1
    pipeline: int = 1
    sequence_parallel: bool = False
    in_flight: int = 1


def activations(shape: Shape, micro: Micro) -> int:
    """Bytes at the highest point of a forward and backward: what layers keep, and the head or one recomputed layer."""
    layers = -(-shape.layers // micro.pipeline) * micro.in_flight
    one, given = _layer(shape, micro), _input(shape, micro)
    kept = layers * (given if micro.checkpointing else one) + 3 * given
    return kept + max(_head(shape, micro), one if micro.checkpointing else 0)


def _head(shape: Shape, micro: Micro) -> int:
    """The embedded engine's: two chunks that all share, what the forward keeps, the gradient of the weight, and casts."""
    if not micro.keeps_float32:
        return _megatron_head(shape, micro)
    rows, chunk = _chunk(shape, micro)
    casts = (rows + micro.responses) * shape.hidden * micro.itemsize if micro.itemsize < 4 else 0
    return casts + 2 * chunk + min(micro.responses * rows, KEPT_LOGITS) * 4 + rows * shape.hidden * 4


def _megatron_head(shape: Shape, micro: Micro) -> int:
    """Three times the logits of a chunk, or one and the gradients of its weight, which add up where there are several."""
    rows, chunk = _chunk(shape, micro)
    copies = 2 if micro.responses * rows * 4 > chunk else 1
    return max(3 * chunk, chunk + copies * rows * shape.hidden * micro.itemsize)


def _chunk(shape: Shape, micro: Micro) -> tuple[int, int]:
    """Ids of the vocabulary on this rank, and the bytes of their logits in a chunk."""
    rows = -(-shape.vocabulary // micro.tensor)
    return rows, min(micro.responses, chunk_tokens(rows)) * rows * 4


def _input(shape: Shape, micro: Micro) -> int:
    """The hidden states that a layer is given."""
    parts = micro.tensor if micro.sequence_parallel else 1
    return micro.tokens * shape.hidden * (4 if micro.keeps_float32 else micro.itemsize) // parts


def _layer(shape: Shape, micro: Micro) -> int:
    return _embedded(shape, micro) if micro.keeps_float32 else _megatron(shape, micro)


def _embedded(shape: Shape, micro: Micro) -> int:
    """transformers' layer: two norms in float32, attention, feed-forward; under autocast, casts of inputs and weights.

    With a mask, keys and values are repeated for every query head, and the mask is kept as numbers.
    """
    h, q, k, f, size = shape.hidden, shape.query, shape.key, _width(shape), micro.itemsize
    casts = 5 * h * size if size < 4 else 0
    norms = 4 * 4 * h + (casts if size < 4 else 2 * 4 * h)
    keys = q if micro.pairs else k
    attention = 2 * (q + keys) * size + shape.qk_norm * (q + k) * (6 if size < 4 else 8)
    weights = (shape.attention + max(shape.experts, 1) * shape.expert) * size if size < 4 else 0
    return micro.tokens * (norms + attention + 4 * f * size) + micro.pairs * size + weights


def _megatron(shape: Shape, micro: Micro) -> int:
    """Megatron's layer: what is between the parallel parts is whole, or shared out under sequence parallelism."""
    h, q, k, f = shape.hidden, shape.query, shape.key, _width(shape)
    between = 4 * h // (micro.tensor if micro.sequence_parallel else 1)
    within = (2 * q + 2 * k + shape.qk_norm * (q + k) + 4 * f) // micro.tensor
    return micro.tokens * (between + within) * micro.itemsize


def _width(shape: Shape) -> int:
    """Of the feed-forward layer as a token meets it: its experts side by side."""
    return shape.ffn * (shape.experts_per_token or 1)
