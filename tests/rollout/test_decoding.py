from types import SimpleNamespace

import pytest
import torch
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from relax_core.rollout.decoding import BLOCK, GrowingLayer, attend, attending_to_one

HEADS, KEYS, WIDTH, LENGTH = 6, 2, 8, 5


def states(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("heads", [HEADS, KEYS])
@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize("is_masked", [True, False])
def test_a_token_attends_as_transformers_has_it(heads, new, is_masked):
    query, key, value = states(4, heads, new, WIDTH), states(4, KEYS, LENGTH, WIDTH), states(4, KEYS, LENGTH, WIDTH + 0)
    mask = torch.ones(4, 1, new, LENGTH, dtype=torch.bool)
    mask[1, ..., :3] = False
    module = SimpleNamespace(num_key_value_groups=heads // KEYS, is_causal=True)
    given = (module, query, key, value, mask if is_masked else None)
    expected, _ = sdpa_attention_forward(*given, scaling=0.3)
    actual, _ = attend(*given, scaling=0.3)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


def test_a_cache_with_room_holds_what_one_without_does():
    plain = DynamicLayer()
    plain.update(states(3, KEYS, LENGTH, WIDTH), states(3, KEYS, LENGTH, WIDTH) + 1)
    growing = GrowingLayer(plain)
    for number in range(2 * BLOCK + 3):
        if number in (1, BLOCK):
            for layer in (plain, growing):
                layer.batch_select_indices(torch.tensor([1, 0] if number == 1 else [1]))
        new = states(len(plain.keys), KEYS, 1, WIDTH) + number
        for mine, theirs in zip(growing.update(new, -new), plain.update(new, -new), strict=True):
            assert torch.equal(mine, theirs)
        assert growing.get_seq_length() == plain.get_seq_length()


@pytest.mark.parametrize(("given", "inside"), [("sdpa", "sdpa_of_one_token"), ("eager", "eager")])
def test_the_model_has_its_own_attention_again_afterwards(given, inside):
    config = SimpleNamespace(_attn_implementation=given)
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: config))
    with attending_to_one(model):
        assert config._attn_implementation == inside
    assert config._attn_implementation == given
