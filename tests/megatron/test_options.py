"""What `trainer.megatron_args` and `trainer.dtype` switch on, as far as it runs on a CPU."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer import TransformerConfig

from relax_core.engines.ranked import Role
from relax_core.rules.megatron_args import known_arguments
from tests.megatron.conftest import LENGTHS, TOKENS, embedded, megatron, prepared, ranks_of, resolved, runtime_of, shape

pytestmark = pytest.mark.slow
SHARDED = {"use_distributed_optimizer": True}
OVERLAPPED = {**SHARDED, "overlap_grad_reduce": True, "overlap_param_gather": True}
OLD = torch.linspace(-0.3, 0.3, sum(LENGTHS))


@pytest.fixture(scope="module")
def dp2():
    with ranks_of("dp2") as ranks:
        yield ranks


def test_the_arguments_that_may_be_written_are_those_that_megatron_has():
    kinds = (TransformerConfig, OptimizerConfig, DistributedDataParallelConfig)
    assert known_arguments() == sorted({field.name for kind in kinds for field in fields(kind)})


def run_of(model, **trainer):
    return resolved(model, "dp2", trainer={"adam_eps": 1e-4, **trainer})


def step(engine, run, number):
    bound = runtime_of(run)
    return engine.update(TOKENS, prepared(bound, OLD - 3.0), bound, number)


@pytest.mark.parametrize("arguments", [SHARDED, OVERLAPPED], ids=["sharded", "overlapped"])
def test_the_distributed_optimizer_takes_the_same_steps(dp2, model, arguments):
    run = run_of(model, megatron_args=arguments)
    reference = {"reference": Role(model, shape(model), "model.ref_hf_model_path")}
    mine, theirs = megatron(run, dp2, reference), embedded(run)
    frozen = mine.score(TOKENS, "reference")
    for number in range(3):
        assert step(mine, run, number).grad_norm == pytest.approx(step(theirs, run, number).grad_norm, rel=1e-5)
        torch.testing.assert_close(mine.score(TOKENS, "reference"), frozen, rtol=0, atol=0)
        torch.testing.assert_close(mine.score(TOKENS, "actor"), theirs.score(TOKENS, "actor"), rtol=1e-5, atol=5e-6)


def test_bfloat16_parameters_go_on_from_their_checkpoint(dp2, model, tmp_path):
    run = run_of(model, dtype="bfloat16")
    engine = megatron(run, dp2)
    step(engine, run, 0)
    engine.save(tmp_path)
    expected, weights = step(engine, run, 1), dict(engine.weights())
    resumed = megatron(run, dp2)
    resumed.load(tmp_path)
    assert step(resumed, run, 1).grad_norm == pytest.approx(expected.grad_norm, rel=1e-6)
    torch.testing.assert_close(dict(resumed.weights()), weights, rtol=1e-5, atol=1e-7)


def test_bfloat16_parameters_train_on_float32_copies(dp2, model):
    run = run_of(model, dtype="bfloat16")
    engine, exact = megatron(run, dp2), embedded(run_of(model))
    assert {tensor.dtype for _, tensor in engine.weights()} == {torch.bfloat16}
    for number in range(3):
        assert step(engine, run, number).grad_norm == pytest.approx(step(exact, run, number).grad_norm, rel=0.05)
