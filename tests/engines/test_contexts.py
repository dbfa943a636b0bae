"""Sequences whose context was replaced: each piece is read alone, and the sequence is one to everything else."""

from __future__ import annotations

import pytest
import torch

from relax_core.config import TrainerSection
from relax_core.engines.critic import TorchCritic
from relax_core.engines.hf_model import load_critic
from relax_core.engines.placement import parts
from relax_core.engines.rows import lay_out
from relax_core.engines.types import Tokens
from tests.cases.build import rollout, runtime

PROMPTS = [[10, 11, 12], [10, 11, 12], [20, 21], [20, 21]]
RESPONSES = [[50, 51, 52, 53], [54, 55], [60, 61, 62, 63, 64, 65, 66], [67]]
RESETS = [[(2, [90, 91])], [], [(0, [35]), (3, [36, 37, 38, 39]), (7, [99])], []]
SPLIT = Tokens(PROMPTS, RESPONSES, resets=RESETS)
ALONE = Tokens(
    [[10, 11, 12], [90, 91], [10, 11, 12], [35], [36, 37, 38, 39], [20, 21]],
    [[50, 51], [52, 53], [54, 55], [60, 61, 62], [63, 64, 65, 66], [67]],
)
"""The pieces as sequences of their own; nobody read `[99]`."""
REWARDS = [1.0, 0.0, -0.5, 2.0]
CUTS = [
    {"micro_batch_size": 1},
    {"micro_batch_size": 3},
    {"use_dynamic_batch_size": True, "max_tokens_per_micro_batch": 16},
    {"use_dynamic_batch_size": True, "max_tokens_per_micro_batch": 1000},
]


def test_pieces_by_hand():
    assert SPLIT.pieces(0) == [([10, 11, 12], [50, 51]), ([90, 91], [52, 53])]
    assert SPLIT.pieces(2) == [([35], [60, 61, 62]), ([36, 37, 38, 39], [63, 64, 65, 66])]
    assert Tokens([[1]], [[]], resets=[[(0, [2])]]).pieces(0) == [([1], [])]
    assert SPLIT.lengths() == [9, 5, 12, 3]
    assert SPLIT.select([2, 0]).resets == [RESETS[2], RESETS[0]]


def test_a_layout_by_hand():
    layout = lay_out(SPLIT.select([0, 1]), width=None)
    assert layout.ids.tolist() == [[10, 11, 12, 50, 51], [90, 91, 52, 53, 0], [10, 11, 12, 54, 55]]
    assert layout.positions.tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 0], [0, 1, 2, 3, 4]]
    assert (layout.rows.tolist(), layout.columns.tolist()) == ([0, 0, 1, 1, 2, 2], [3, 4, 2, 3, 3, 4])
    assert layout.predictors.tolist() == [2, 3, 1, 2, 2, 3]


def test_a_micro_batch_has_the_pieces_of_whole_sequences_within_its_tokens():
    """16 tokens hold two lines of 8, or three of 5."""
    cut = parts(SPLIT, TrainerSection(**CUTS[2]), None)
    assert [part.index for part in cut] == [[2], [0, 1], [3]]
    assert all(lay_out(part.tokens, None).ids.numel() <= 16 for part in cut)


@pytest.mark.parametrize("cut", CUTS)
def test_a_piece_is_scored_as_a_sequence_of_its_own(make_engine, cut):
    engine = make_engine(**cut)
    torch.testing.assert_close(engine.score(SPLIT, "actor"), engine.score(ALONE, "actor"), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("cut", CUTS)
def test_a_trajectory_counts_once(make_engine, cut):
    """REINFORCE by hand: −(1/S) Σ_s A_s · (1/|s|) Σ_t ∇ log π, each log-prob from its own context."""
    engine = make_engine(**cut, lr=0.0, clip_grad=0.0)
    model, total, lengths = engine.model, torch.zeros(()), iter([4, 4, 2, 7, 7, 1])
    for context, part, reward in zip(ALONE.prompts, ALONE.responses, [1.0, 1.0, 0.0, -0.5, -0.5, 2.0], strict=True):
        logits = model(input_ids=torch.tensor([context + part])).logits[0, len(context) - 1 : -1]
        log_probs = logits.log_softmax(-1).gather(-1, torch.tensor(part)[:, None])
        total = total - reward * log_probs.sum() / next(lengths) / 4
    wanted = torch.autograd.grad(total, list(model.parameters()))

    advantages = [[reward] * len(each) for reward, each in zip(REWARDS, RESPONSES, strict=True)]
    batch = rollout([[-1.0] * len(each) for each in RESPONSES], dtype=torch.float32, advantages=advantages)
    scored = {"old_log_probs": engine.score(SPLIT, "actor"), "loss_mask": torch.ones(14, dtype=torch.bool)}
    engine.update(SPLIT, batch.with_values(**scored), runtime(loss_agg_mode="seq-mean-token-mean"), 0)
    got = [parameter.grad for parameter in model.parameters()]
    torch.testing.assert_close(got, list(wanted), atol=2e-6, rtol=1e-4)


def test_a_critic_values_each_piece_alone(tiny_model):
    def values(tokens):
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model = load_critic(tiny_model, who="test")
            model.score.weight.data.normal_()
        return TorchCritic(model, TrainerSection(micro_batch_size=2), updates=1).values(tokens)

    torch.testing.assert_close(values(SPLIT), values(ALONE), atol=2e-6, rtol=1e-5)
