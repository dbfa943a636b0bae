"""Layouts in which responses share the row of their prompt."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from relax_core.engines.hf_model import Reading, can_share_prompts, response_log_probs
from relax_core.engines.rows import lay_out
from relax_core.engines.types import Tokens
from relax_core.numerics.sizes import responses_per_row

GROUPS = Tokens(
    prompts=[[5, 6, 7, 8, 9, 10]] * 3 + [[11, 12]] * 2 + [[13]],
    responses=[[20, 21], [], [22, 23, 24], [25], [26, 27], [28]],
)
SMALL = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.fixture
def llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SMALL)).double()


def test_a_row_by_hand():
    layout = lay_out(Tokens([[1, 2, 3, 4]] * 2, [[5, 6], [7]]), width=10_000)
    assert layout.ids.tolist() == [[1, 2, 3, 4, 5, 6, 7]]
    assert layout.positions.tolist() == [[0, 1, 2, 3, 4, 5, 4]]
    assert layout.segments.tolist() == [[0, 0, 0, 0, 1, 1, 2]]
    assert layout.columns.tolist() == [4, 5, 6]
    assert layout.predictors.tolist() == [3, 4, 3]
    assert layout.mask()[0, 0, 6].tolist() == [True] * 4 + [False, False, True]


@pytest.mark.parametrize("width", [None, 32, 10_000])
def test_log_probs_and_gradients_are_those_of_each_sequence_alone(llama, width):
    total = []
    for prompt, response in zip(GROUPS.prompts, GROUPS.responses, strict=True):
        logits = llama(input_ids=torch.tensor([prompt + response])).logits[
            0, len(prompt) - 1 : len(prompt) + len(response) - 1
        ]
        total.append(logits.log_softmax(-1).gather(-1, torch.tensor(response, dtype=torch.long)[:, None]).squeeze(-1))
    expected = torch.cat(total)
    weights = torch.linspace(-1, 2, len(expected), dtype=torch.float64)
    wanted = torch.autograd.grad((expected * weights).sum(), list(llama.parameters()))

    actual, *_ = response_log_probs(llama, GROUPS, Reading(share=width is not None))
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-6)
    got = torch.autograd.grad((actual * weights).sum(), list(llama.parameters()))
    torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-5)


def test_sharing_is_refused_where_the_attention_has_a_window():
    model = MistralForCausalLM(MistralConfig(**SMALL, sliding_window=4))
    assert not can_share_prompts(model)


def test_sharing_is_allowed_for_a_full_attention(llama):
    assert can_share_prompts(llama.float())


@pytest.mark.parametrize(
    ("prompt", "response", "group", "width", "best"),
    [(45, 12, 8, 576, 8), (100, 1000, 8, 1024, 1), (1000, 100, 8, 1024, 8), (4, 3, 1, 64, 1)],
)
def test_a_row_holds_as_many_responses_as_pay(prompt, response, group, width, best):
    assert responses_per_row(prompt, response, group, width) == best
