"""Every parallel form against the embedded engine: the same gradients, metrics and weights."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from relax_core.aggregation import AGGREGATIONS
from relax_core.groups import Solo
from relax_core.packing import select_sequences
from tests.megatron.conftest import (
    EVERY_SECOND,
    LAYOUTS,
    TOKENS,
    embedded,
    megatron,
    prepared,
    ranks_of,
    resolved,
    runtime_of,
)

ALGORITHMS = {
    "grpo": {"advantage_estimator": "grpo", "entropy_coef": 0.01},
    "gspo": {"advantage_estimator": "gspo"},
    "rloo": {"advantage_estimator": "rloo"},
    "reinforce_plus_plus": {"advantage_estimator": "reinforce_plus_plus", "normalize_advantages": True},
}
QUICK = ("one", "dp2", "tp2sp", "pp2", "cp2")
STEPS = 3


@pytest.fixture(
    scope="module", params=[name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in LAYOUTS]
)
def layout(request):
    with ranks_of(request.param) as ranks:
        yield request.param, ranks


def trained(engine, run):
    """Gradient norms, metrics and weights of a few updates, off the policy, the last with every second sequence masked."""
    bound, norms, seen = runtime_of(run), [], []
    old = torch.linspace(-0.3, 0.3, sum(map(len, TOKENS.responses)))
    scores = engine.score(TOKENS, "actor")
    for step in range(STEPS):
        batch = prepared(bound, scores + old, EVERY_SECOND if step == STEPS - 1 else None)
        update = engine.update(TOKENS, batch, bound, step)
        norms.append(update.grad_norm)
        seen.append(update.metrics.reduce(Solo()))
        assert update.applied
        assert update.lr == 1e-3
    return scores, norms, seen, {name: tensor.clone() for name, tensor in engine.weights()}


def run_of(model, layout, algorithm, aggregation):
    """With an ε that is more than rounding: Adam divides by the gradient's size, and would step where rounding points."""
    chosen = {**ALGORITHMS[algorithm], "loss_agg_mode": aggregation}
    return resolved(model, layout, chosen, trainer={"adam_eps": 1e-4, "weight_decay": 0.1})


@cache
def expected(model, algorithm, aggregation):
    run = run_of(model, "one", algorithm, aggregation)
    return trained(embedded(run), run)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_trains_as_the_embedded_engine_does(layout, model, algorithm, aggregation):
    name, ranks = layout
    run = run_of(model, name, algorithm, aggregation)
    scores, norms, seen, weights = trained(megatron(run, ranks), run)
    wanted_scores, wanted_norms, wanted_seen, wanted_weights = expected(model, algorithm, aggregation)
    torch.testing.assert_close(scores, wanted_scores, rtol=1e-5, atol=5e-6)
    assert norms == pytest.approx(wanted_norms, rel=1e-5)
    for mine, theirs in zip(seen, wanted_seen, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    torch.testing.assert_close(weights, wanted_weights, rtol=1e-4, atol=2e-6)


def test_gradients_are_those_of_the_embedded_engine(layout, model):
    """Plain descent at a rate of 1: what a weight loses is its gradient."""
    name, ranks = layout
    descent = {"lr": 1.0, "clip_grad": 0.0, "megatron_args": {"optimizer": "sgd", "sgd_momentum": 0.0}}
    run = resolved(model, name, ALGORITHMS["grpo"], trainer=descent)
    mine, theirs = megatron(run, ranks), embedded(run)
    bound = runtime_of(run)
    batch = prepared(bound, theirs.score(TOKENS, "actor") + 0.1)
    before = dict(mine.weights())
    mine.update(TOKENS, batch, bound, 0)
    actual = {name: before[name] - weight for name, weight in mine.weights()}
    theirs.update(TOKENS, batch, bound, 0)
    wanted = {name: parameter.grad for name, parameter in theirs.model.named_parameters()}
    torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=2e-6)


def test_a_sequence_in_pieces_is_one_as_in_the_embedded_engine(layout, model):
    """Scores, gradient and metrics where the contexts of some sequences were replaced; the mean counts each once."""
    name, ranks = layout
    run = run_of(model, name, "gspo", "seq-mean-token-mean")
    resets = [[(2, [13, 14])], [], [(0, [15]), (1, [16, 17, 18])], [], [(3, [19] * 5), (4, [35])], [], [], []]
    tokens, bound = replace(TOKENS, resets=resets), runtime_of(run)
    mine, theirs = megatron(run, ranks), embedded(run)
    scores = theirs.score(tokens, "actor")
    assert (scores - theirs.score(TOKENS, "actor")).abs().max() > 0.1, "what is read matters"
    torch.testing.assert_close(mine.score(tokens, "actor"), scores, rtol=1e-5, atol=5e-6)
    batch = prepared(bound, scores + torch.linspace(-0.3, 0.3, len(scores)))
    actual, wanted = (engine.update(tokens, batch, bound, 0) for engine in (mine, theirs))
    assert actual.grad_norm == pytest.approx(wanted.grad_norm, rel=1e-5)
    assert actual.metrics.reduce(Solo()) == pytest.approx(wanted.metrics.reduce(Solo()), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    "cut",
    [
        {"micro_batch_size": 1},
        {"micro_batch_size": 8},
        {"use_dynamic_batch_size": True, "max_tokens_per_micro_batch": 16},
    ],
)
def test_1_the_gradient_does_not_depend_on_the_cut(layout, model, cut):
    name, ranks = layout
    algorithm = {"advantage_estimator": "gspo", "loss_agg_mode": "seq-mean-token-mean"}
    run = resolved(model, name, algorithm, trainer=cut)
    _, norms, _, _ = trained(megatron(run, ranks), run)
    assert norms == pytest.approx(expected(model, "gspo", "seq-mean-token-mean")[1], rel=1e-5)


def test_10_nothing_live_changes_nothing(layout, model):
    name, ranks = layout
    run = resolved(model, name)
    engine, bound = megatron(run, ranks), runtime_of(run)
    before = dict(engine.weights())
    scores = engine.score(TOKENS, "actor")
    update = engine.update(
        TOKENS, prepared(bound, scores, [[False] * len(each) for each in TOKENS.responses]), bound, 0
    )
    assert (update.applied, update.grad_norm) == (False, 0.0)
    torch.testing.assert_close(dict(engine.weights()), before, rtol=0, atol=0)
    assert engine.update(TOKENS, prepared(bound, scores), bound, 1).applied


def test_11_fewer_sequences_than_ranks(layout, model):
    """A rank without a sequence joins every collective."""
    name, ranks = layout
    run = resolved(model, name)
    mine, theirs, bound = megatron(run, ranks), embedded(run), runtime_of(run)
    one = TOKENS.select([4])
    torch.testing.assert_close(mine.score(one, "actor"), theirs.score(one, "actor"), rtol=1e-5, atol=5e-6)
    whole = prepared(bound, theirs.score(TOKENS, "actor") + 0.1)
    part = select_sequences(whole, torch.tensor([4]))
    assert mine.update(one, part, bound, 0).grad_norm == pytest.approx(
        theirs.update(one, part, bound, 0).grad_norm, rel=1e-5
    )


@pytest.mark.parametrize("temperature", [0.6])
def test_29_the_temperature_divides_the_logits(layout, model, temperature):
    name, ranks = layout
    run = resolved(model, name, rollout={"temperature": temperature})
    torch.testing.assert_close(
        megatron(run, ranks).score(TOKENS, "actor"), embedded(run).score(TOKENS, "actor"), rtol=1e-5, atol=5e-6
    )
