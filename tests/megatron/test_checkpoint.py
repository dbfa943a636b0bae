"""What is saved in one layout goes on in another, and in the same one to the same bits."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from relax_core.errors import LoadError
from tests.megatron.conftest import TOKENS, megatron, prepared, ranks_of, resolved, runtime_of

TRAINER = {"weight_decay": 0.1, "lr_schedule": "cosine", "lr_warmup_steps": 1}


@pytest.fixture(scope="module")
def tp2():
    with ranks_of("tp2") as ranks:
        yield ranks


def step(engine, run, number):
    bound = runtime_of(run)
    old = torch.linspace(-0.3, 0.3, sum(map(len, TOKENS.responses)))
    return engine.update(TOKENS, prepared(bound, old - 3.0), bound, number)


@pytest.fixture(scope="module")
def saved(tp2, model, tmp_path_factory):
    """A checkpoint after two updates, and the third update with the weights after it."""
    directory = tmp_path_factory.mktemp("checkpoint")
    run = resolved(model, "tp2", trainer=TRAINER)
    engine = megatron(run, tp2)
    for number in range(2):
        step(engine, run, number)
    engine.save(directory)
    at_save = dict(engine.weights())
    update = step(engine, run, 2)
    return directory, at_save, update, dict(engine.weights())


def resumed(saved, model, layout, ranks):
    run = resolved(model, layout, trainer=TRAINER)
    engine = megatron(run, ranks)
    engine.load(saved[0])
    return step(engine, run, 2), dict(engine.weights())


def test_resuming_in_the_same_layout_is_bit_equal(saved, model, tp2):
    update, weights = resumed(saved, model, "tp2", tp2)
    assert (update.grad_norm, update.lr) == (saved[2].grad_norm, saved[2].lr)
    assert update.lr != 1e-3
    torch.testing.assert_close(weights, saved[3], rtol=0, atol=0)


@pytest.mark.parametrize("layout", ["one", "pp2"])
def test_resuming_in_another_layout_takes_the_same_step(saved, model, layout):
    with ranks_of(layout) as ranks:
        update, weights = resumed(saved, model, layout, ranks)
    assert update.lr == saved[2].lr
    assert update.grad_norm == pytest.approx(saved[2].grad_norm, rel=1e-5)
    torch.testing.assert_close(weights, saved[3], rtol=1e-4, atol=1e-6)


def test_rates_are_those_of_the_configuration_that_goes_on(saved, tp2, model):
    rate = {"lr": 5e-4, "lr_schedule": "constant", "lr_warmup_steps": 0}
    engine = megatron(resolved(model, "tp2", trainer={**TRAINER, **rate}), tp2)
    engine.load(saved[0])
    assert step(engine, resolved(model, "tp2", trainer={**TRAINER, **rate}), 2).lr == pytest.approx(5e-4)


def test_a_checkpoint_loads_with_from_pretrained(saved):
    loaded = dict(AutoModelForCausalLM.from_pretrained(saved[0], dtype=torch.float32).named_parameters())
    torch.testing.assert_close({name: loaded[name].detach() for name in saved[1]}, saved[1], rtol=0, atol=0)


def test_a_checkpoint_before_the_first_update_goes_on(tp2, model, tmp_path):
    run = resolved(model, "tp2")
    engine = megatron(run, tp2)
    engine.save(tmp_path)
    first, weights = step(engine, run, 0), dict(engine.weights())
    other = megatron(run, tp2)
    other.load(tmp_path)
    assert step(other, run, 0).grad_norm == first.grad_norm
    torch.testing.assert_close(dict(other.weights()), weights, rtol=0, atol=0)


def test_a_directory_without_a_checkpoint_is_refused(model, tmp_path):
    with ranks_of("one") as ranks, pytest.raises(LoadError) as error:
        megatron(resolved(model), ranks).load(tmp_path)
    expected = (
        f"--resume: '{tmp_path}/dist_ckpt' is no Megatron checkpoint. Fix: name one that trainer.engine: megatron wrote"
    )
    assert str(error.value) == expected
