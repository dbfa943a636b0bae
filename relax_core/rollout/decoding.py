"""What one new token a row costs in a Hugging Face model: no key is repeated for its query heads, no cache copied to grow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel

NAME = "sdpa_of_one_token"
BLOCK = 128
"""Places that a cache grows by."""


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """transformers' `sdpa`; of a single token, the query heads of one key head [B, K, G, D] stand as its queries."""
    batch, heads, length, width = query.shape
    if length != 1 or heads == key.shape[1] or options.get("position_bias") is not None:
        found: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return found
    grouped = query.reshape(batch, key.shape[1], heads // key.shape[1], width)
    mixed = functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=options.get("scaling")
    )
    return mixed.reshape(batch, 1, heads, width), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextmanager
def attending_to_one(model: PreTrainedModel) -> Iterator[None]:
    """Inside the block a model that has `sdpa` attends with `attend`."""
    config = model.config.get_text_config()
    before = config._attn_implementation
    if before == "sdpa":
        config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """A layer's keys and values [R, K, L, D], in buffers with room for more."""

    def __init__(self, layer: DynamicLayer) -> None:
        super().__init__()
        self.dtype, self.device, self.is_initialized = layer.dtype, layer.device, True
        self.keys, self.values = layer.keys, layer.values
        self._room = 0

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Add those of new tokens; gives all."""
        start, end = self.keys.shape[-2], self.keys.shape[-2] + key_states.shape[-2]
        if end > self._room:
            self._room = end + BLOCK
            self._keys, self._values = self._grown(self.keys), self._grown(self.values)
        self._keys[..., start:end, :], self._values[..., start:end, :] = key_states, value_states
        self.keys, self.values = self._keys[..., :end, :], self._values[..., :end, :]
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Only keep these rows."""
        super().batch_select_indices(indices)
        self._room = 0

    def _grown(self, states: Tensor) -> Tensor:
        room = states.new_empty(*states.shape[:-2], self._room, states.shape[-1])
        room[..., : states.shape[-2], :] = states
        return room


def let_grow(cache: Cache) -> None:
    """Layers that are copied for each new token get room; others, a sliding window's for one, stay as they are."""
    cache.layers = [GrowingLayer(layer) if type(layer) is DynamicLayer else layer for layer in cache.layers]
