"""The sizes of a model, from its `config.json`, and how many parameters they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relax_core.errors import UsageError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe")
"""Decoders with RMSNorm and a gated feed-forward layer, all of one kind."""
REQUIRED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a decoder. `ffn` is the width of a feed-forward layer, of one expert where there are `experts`."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    tied: bool
    qk_norm: bool = False
    qkv_bias: bool = False
    experts: int = 0
    experts_per_token: int = 0
    context: int = 0

    @property
    def query(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        """Width of all key heads; the values' is the same."""
        return self.kv_heads * self.head_dim

    @property
    def table(self) -> int:
        """Parameters of the embedding, and of an output embedding that is not tied to it."""
        return self.vocabulary * self.hidden

    @property
    def attention(self) -> int:
        """Parameters of the matrices of one layer's attention."""
        return 2 * self.hidden * (self.query + self.key) + self.qkv_bias * (self.query + 2 * self.key)

    @property
    def expert(self) -> int:
        """Parameters of one feed-forward layer, or of one expert of it."""
        return 3 * self.hidden * self.ffn

    @property
    def shared(self) -> int:
        """Parameters of a layer that every tensor-parallel rank has whole: norms and router."""
        return 2 * self.hidden + self.qk_norm * 2 * self.head_dim + self.hidden * self.experts

    @property
    def matrices(self) -> int:
        """Parameters of a layer that tensor-parallel ranks share."""
        return self.attention + max(self.experts, 1) * self.expert

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        tables = self.table * (1 if self.tied else 2)
        return self.layers * (self.matrices + self.shared) + tables + self.hidden

    @property
    def multiplied(self) -> int:
        """Parameters that one token is multiplied with: those of its experts alone, and no look-up of an embedding."""
        router = self.hidden * self.experts
        return self.layers * (self.attention + (self.experts_per_token or 1) * self.expert + router) + self.table

    def on_rank(self, tensor: int, pipeline: int, *, head: bool = True) -> int:
        """Parameters of the rank that has most under these parallel sizes; without `head`, of a critic."""
        layers = -(-self.layers // pipeline) * (-(-self.matrices // tensor) + self.shared)
        tables = 2 if head and not self.tied and pipeline == 1 else 1
        return layers + tables * -(-self.vocabulary // tensor) * self.hidden + self.hidden

    def cache_bytes(self, itemsize: int) -> int:
        """Bytes of the keys and values of one token, in all layers."""
        return 2 * self.layers * self.key * itemsize


def shape_of(config: Mapping[str, Any], who: str) -> Shape:
    """The shape that a Hugging Face configuration describes. UsageError for a family or a file that has none here."""
    config = config.get("text_config") or config
    family = config.get("model_type")
    if family not in FAMILIES:
        fix = f"give the config.json of one of {', '.join(FAMILIES)}"
        raise UsageError(f"there is no estimate for a '{family}' model", who=who, fix=fix)
    width = "moe_intermediate_size" if config.get("num_experts") or config.get("num_local_experts") else None
    wanted = (*REQUIRED, "num_experts_per_tok", width) if width else REQUIRED
    if wrong := [name for name in wanted if not _is_size(config.get(name))]:
        raise UsageError(f"no size in {', '.join(wrong)}", who=who, fix="give a config.json that save_pretrained wrote")
    return _shape(config, str(family), str(width or "intermediate_size"))


def _is_size(value: object) -> bool:
    return type(value) is int and value > 0


def _shape(config: Mapping[str, Any], family: str, width: str) -> Shape:
    heads = config["num_attention_heads"]
    return Shape(
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        ffn=config[width],
        vocabulary=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", False)),
        qk_norm=family.startswith("qwen3"),
        qkv_bias=family == "qwen2",
        experts=config.get("num_experts") or config.get("num_local_experts") or 0,
        experts_per_token=config.get("num_experts_per_tok") or 0,
        context=config.get("max_position_embeddings") or 0,
    )
