"""Parameters of published models, against the numbers that their makers publish and sums made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relax_core.errors import UsageError
from relax_core.scaling.shape import Shape, shape_of

MODELS = Path(__file__).parents[2] / "examples" / "scaling"
QWEN3_0_6B = {
    "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
    "tie_word_embeddings": True,
}  # fmt: skip
LLAMA_3_8B = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip
QWEN2_5_0_5B = {
    "model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip
QWEN3_30B_A3B = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936, "tie_word_embeddings": False,
}  # fmt: skip
PUBLISHED = [
    (QWEN3_0_6B, 596_049_920),
    (LLAMA_3_8B, 8_030_261_248),
    (QWEN2_5_0_5B, 494_032_768),
    (QWEN3_30B_A3B, 30_532_122_624),
]
"""The numbers of weights in the published safetensors files."""
TINY = {
    "model_type": "llama", "hidden_size": 4, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 6, "vocab_size": 10,
}  # fmt: skip


@pytest.mark.parametrize(("config", "count"), PUBLISHED, ids=lambda value: str(value)[:30])
def test_parameters_are_those_of_the_published_models(config, count):
    assert shape_of(config, "test").parameters == count


@pytest.mark.parametrize(("name", "billions"), [("Qwen3-4B", 4.02), ("Qwen3-32B", 32.8), ("Llama-3.1-70B", 70.6)])
def test_the_models_of_the_examples_are_as_large_as_published(name, billions):
    shape = shape_of(json.loads((MODELS / f"{name}.json").read_text()), "test")
    assert shape.parameters / 1e9 == pytest.approx(billions, abs=0.05)


def test_a_mixture_multiplies_a_token_with_its_experts_alone():
    shape = shape_of(QWEN3_30B_A3B, "test")
    attention = 2 * 2048 * (4096 + 512)
    experts = 8 * 3 * 2048 * 768
    assert shape.multiplied == 48 * (attention + experts + 2048 * 128) + 151936 * 2048
    assert shape.multiplied / 1e9 == pytest.approx(3.3, abs=0.3)


def test_a_layer_and_the_tables_by_hand():
    shape = shape_of(TINY, "test")
    # q and o 4·4 each, k and v 4·2 each; three matrices 4·6; two norms of 4.
    assert (shape.attention, shape.expert, shape.shared) == (16 + 16 + 8 + 8, 72, 8)
    assert shape.parameters == 2 * (48 + 72 + 8) + 2 * 40 + 4


@pytest.mark.parametrize(
    ("tensor", "pipeline", "count"),
    [
        (1, 1, 2 * 128 + 80 + 4),
        (2, 1, 2 * (60 + 8) + 2 * 5 * 4 + 4),
        (1, 2, 128 + 40 + 4),  # an embedding on each of the two stages
        (3, 2, 40 + 8 + 4 * 4 + 4),  # ten rows are twelve on three ranks
    ],
)
def test_the_largest_rank_by_hand(tensor, pipeline, count):
    assert shape_of(TINY, "test").on_rank(tensor, pipeline) == count


def test_a_critic_has_no_output_embedding():
    shape = shape_of(TINY, "test")
    assert shape.on_rank(1, 1) - shape.on_rank(1, 1, head=False) == 40


def test_keys_and_values_of_a_token():
    assert shape_of(LLAMA_3_8B, "test").cache_bytes(2) == 131072  # 128 KiB: 2 · 32 layers · 8 heads · 128 · 2 bytes


def test_the_text_part_of_several_counts():
    assert isinstance(shape_of({"model_type": "other", "text_config": TINY}, "test"), Shape)


def test_another_family_is_refused():
    with pytest.raises(UsageError) as error:
        shape_of({"model_type": "gpt2"}, "model.path")
    assert str(error.value) == (
        "model.path: there is no estimate for a 'gpt2' model. "
        "Fix: give the config.json of one of llama, mistral, qwen2, qwen3, qwen3_moe"
    )


def test_sizes_that_are_missing_are_named_all_at_once():
    with pytest.raises(UsageError) as error:
        shape_of({**TINY, "hidden_size": "4", "vocab_size": 0}, "model.path")
    assert str(error.value) == (
        "model.path: no size in hidden_size, vocab_size. Fix: give a config.json that save_pretrained wrote"
    )
