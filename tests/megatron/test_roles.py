"""The other models of a run on Megatron's ranks, and models of other shapes, against the embedded engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from relax_core.engines.critic import TorchCritic
from relax_core.engines.hf_model import load_critic, load_model
from relax_core.engines.megatron.engine import MegatronCritic
from relax_core.engines.ranked import Role
from tests.megatron.conftest import (
    LENGTHS,
    TOKENS,
    embedded,
    megatron,
    prepared,
    ranks_of,
    resolved,
    runtime_of,
    shape,
)
from tests.megatron.models import mixture, tied_llama, wider

DISTILLATION = Path(__file__).parents[1] / "contract" / "plugins" / "topk_distillation.py"
CLOSE = {"rtol": 1e-5, "atol": 5e-6}
OLD = torch.linspace(-0.3, 0.3, sum(LENGTHS))
SHAPES = ("tp2sp", "pp2")


@pytest.fixture(scope="module")
def tp2():
    with ranks_of("tp2sp") as ranks:
        yield ranks


@pytest.fixture(scope="module", params=SHAPES)
def layout(request, tp2):
    if request.param == "tp2sp":
        yield request.param, tp2
    else:
        with ranks_of(request.param) as ranks:
            yield request.param, ranks


def role(path, who, **given):
    return Role(path, shape(path), who, **given)


def updated(engine, run, steps=2, **values):
    """Gradient norms of some updates."""
    bound = runtime_of(run)
    scores = engine.score(TOKENS, "actor")
    batch = prepared(bound, scores + OLD, **values)
    return [engine.update(TOKENS, batch, bound, step).grad_norm for step in range(steps)]


def test_the_reference_stays_until_it_is_refreshed(tp2, model, tmp_path):
    run = resolved(model, "tp2sp")
    reference = {"reference": role(model, "model.ref_hf_model_path")}
    engine = megatron(run, tp2, reference, moves_reference=True)
    before = engine.score(TOKENS, "actor")
    updated(engine, run)
    after = engine.score(TOKENS, "actor")
    assert (after - before).abs().max() > 1e-3
    torch.testing.assert_close(engine.score(TOKENS, "reference"), before, rtol=0, atol=0)
    torch.testing.assert_close(engine.score(TOKENS, "actor"), after, rtol=0, atol=0)

    engine.refresh_reference()
    torch.testing.assert_close(engine.score(TOKENS, "reference"), after, rtol=0, atol=0)
    engine.save(tmp_path)
    resumed = megatron(run, tp2, reference, moves_reference=True)
    resumed.load(tmp_path)
    torch.testing.assert_close(resumed.score(TOKENS, "reference"), after, rtol=0, atol=0)


def test_a_reference_is_read_from_a_megatron_checkpoint(tp2, model, tmp_path):
    run = resolved(model, "tp2sp")
    engine = megatron(run, tp2)
    updated(engine, run)
    engine.save(tmp_path)
    trained = engine.score(TOKENS, "actor")
    saved = role(model, "model.ref_dist_ckpt_path", dist_ckpt=tmp_path / "dist_ckpt")
    other = megatron(run, tp2, {"reference": saved})
    torch.testing.assert_close(other.score(TOKENS, "reference"), trained, rtol=0, atol=0)
    assert not torch.equal(other.score(TOKENS, "actor"), trained)


def test_a_teacher_of_another_shape_gives_its_likeliest_tokens(tp2, model, tmp_path):
    teacher = wider(tmp_path)
    run = resolved(model, "tp2sp")
    mine = megatron(run, tp2, {"teacher": role(teacher, "model.teacher_path")})
    theirs = embedded(run, teacher=load_model(teacher, who="test"))
    for actual, expected in zip(mine.candidates(TOKENS, 5), theirs.candidates(TOKENS, 5), strict=True):
        torch.testing.assert_close(actual, expected, **CLOSE)
    torch.testing.assert_close(mine.score(TOKENS, "teacher"), theirs.score(TOKENS, "teacher"), **CLOSE)


@pytest.mark.parametrize("build", [tied_llama, mixture])
def test_another_family_trains_as_embedded(layout, build, tmp_path):
    name, ranks = layout
    path = build(tmp_path)
    run = resolved(path, name, {"entropy_coef": 0.01}, trainer={"adam_eps": 1e-4})
    mine, theirs = megatron(run, ranks), embedded(run)
    torch.testing.assert_close(mine.score(TOKENS, "actor"), theirs.score(TOKENS, "actor"), **CLOSE)
    assert updated(mine, run) == pytest.approx(updated(theirs, run), rel=2e-5)
    torch.testing.assert_close(mine.score(TOKENS, "actor"), theirs.score(TOKENS, "actor"), rtol=1e-4, atol=1e-5)


def test_an_export_of_experts_is_one_that_transformers_reads(tp2, tmp_path):
    path = mixture(tmp_path / "model")
    engine = megatron(resolved(path, "tp2sp"), tp2)
    engine.save(tmp_path / "saved")
    before, after = (dict(load_model(each, who="test").named_parameters()) for each in (path, tmp_path / "saved"))
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_recomputing_activations_changes_no_gradient(tp2, model):
    plain, recomputed = (resolved(model, "tp2sp", trainer={"gradient_checkpointing": each}) for each in (False, True))
    assert updated(megatron(recomputed, tp2), recomputed) == pytest.approx(
        updated(megatron(plain, tp2), plain), rel=1e-6
    )


def test_a_loss_over_candidates_has_their_gradient(tp2, model):
    algorithm = {"topk_distillation": {"enable": True, "top_k": 4}, "plugins": [str(DISTILLATION)]}
    run = resolved(model, "tp2sp", algorithm)
    ids = torch.arange(sum(LENGTHS) * 4).reshape(-1, 4) % 250 + 4
    candidates = {"candidate_ids": ids, "teacher_candidate_log_probs": torch.linspace(-4, -1, 4).expand(len(ids), 4)}
    norms = []
    for engine in (megatron(run, tp2), embedded(run)):
        bound = runtime_of(run)
        batch = prepared(bound, engine.score(TOKENS, "actor")).with_values(**candidates)
        norms.append(engine.update(TOKENS, batch, bound, 0).grad_norm)
    assert norms[0] > 0
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


@pytest.fixture(scope="module")
def critic_model(model, tmp_path_factory):
    directory = tmp_path_factory.mktemp("critic")
    critic = load_critic(model, who="test")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        torch.nn.init.normal_(critic.score.weight, std=0.3)
    critic.save_pretrained(directory)
    return directory


@pytest.mark.parametrize("trained_before", [True, False])
def test_the_critic_learns_as_the_embedded_one(layout, model, critic_model, trained_before, tmp_path):
    name, ranks = layout
    path = critic_model if trained_before else model
    run = resolved(model, name, {"advantage_estimator": "ppo"}, trainer={"critic_lr": 1e-2, "adam_eps": 1e-4})
    hf = {**shape(path), "critic": True, "tie_word_embeddings": False}
    mine = MegatronCritic(megatron(run, ranks, {"critic": Role(path, hf, "model.critic_path")}))
    theirs = TorchCritic(load_critic(path, who="test"), run.config.trainer, updates=10)
    bound = runtime_of(run)
    for step in range(2):
        torch.testing.assert_close(mine.values(TOKENS), theirs.values(TOKENS), rtol=1e-4, atol=2e-5)
        batch = prepared(bound, torch.zeros(sum(LENGTHS)), values=theirs.values(TOKENS)).with_values(returns=OLD + 1)
        update, expected = (each.update(TOKENS, batch, bound, step) for each in (mine, theirs))
        assert update.lr == 1e-2
        assert update.grad_norm == pytest.approx(expected.grad_norm, rel=2e-5)
        actual = update.metrics.reduce(batch.group)["train/value_loss"]
        assert actual == pytest.approx(expected.metrics.reduce(batch.group)["train/value_loss"], rel=1e-4)

    mine.save(tmp_path)
    values = mine.values(TOKENS)
    mine.update(TOKENS, batch, bound, 2)
    mine.load(tmp_path)
    torch.testing.assert_close(mine.values(TOKENS), values, rtol=0, atol=0)
    saved = TorchCritic(load_critic(tmp_path / "critic", who="test"), run.config.trainer, updates=10)
    torch.testing.assert_close(saved.values(TOKENS), values, **CLOSE)
