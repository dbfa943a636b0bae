"""The embedded engine against the plain Hugging Face model."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from relax_core.errors import LoadError, RunError
from relax_core.packing import loss_batch
from relax_core.runtime import Runtime
from tests.cases.build import rollout, runtime
from tests.engines.conftest import TOKENS

CUTS = [
    {"micro_batch_size": 1},
    {"micro_batch_size": 3},
    {"use_dynamic_batch_size": True, "max_tokens_per_micro_batch": 14},
]
MODES = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


def one_by_one(model, temperature: float = 1.0) -> list[torch.Tensor]:
    """Log-probs of each response from a forward of its own sequence alone."""
    found = []
    for prompt, response in zip(TOKENS.prompts, TOKENS.responses, strict=True):
        logits = model(input_ids=torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1] / temperature
        found.append(logits.log_softmax(-1).gather(-1, torch.tensor(response)[:, None]).squeeze(-1))
    return found


def prepared(bound: Runtime, log_probs: list[torch.Tensor], rewards=(1.0, 0.0, 0.5, 2.0), mask=None):
    given = [each.detach().tolist() for each in log_probs]
    batch = rollout(given, rewards=list(rewards), mask=mask, dtype=torch.float32, ref_log_probs=given)
    return bound.prepare(batch)[0]


def gradients(engine) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.clone() for name, parameter in engine.model.named_parameters()}


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_19_a_batch_gives_the_log_probs_of_each_sequence_alone(make_engine, temperature):
    engine = make_engine(temperature=temperature)
    expected = torch.cat(one_by_one(engine.model, temperature))
    torch.testing.assert_close(engine.score(TOKENS, "actor"), expected.detach(), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("cut", CUTS)
def test_scores_come_in_the_order_of_the_batch(make_engine, cut):
    expected = make_engine(micro_batch_size=4).score(TOKENS, "actor")
    torch.testing.assert_close(make_engine(**cut).score(TOKENS, "actor"), expected, atol=2e-6, rtol=1e-5)


def test_32_scoring_runs_in_eval_mode_and_leaves_no_graph(make_engine):
    engine = make_engine()
    modes = []
    engine.model.base_model.register_forward_hook(lambda module, *_: modes.append(module.training))
    scores = engine.score(TOKENS, "actor")
    assert modes == [False]
    assert not scores.requires_grad
    assert engine.model.training


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cut", CUTS)
def test_3_the_gradient_is_that_of_one_plain_backward(make_engine, mode, cut):
    bound = runtime(loss_agg_mode=mode, loss_agg_length=8, entropy_coef=0.01)
    engine = make_engine(lr=0.0, clip_grad=0.0, entropy=True, **cut)
    batch = prepared(bound, [each + 0.3 * (-1) ** i for i, each in enumerate(one_by_one(engine.model))])
    engine.update(TOKENS, batch, bound, 0)
    actual = gradients(engine)

    plain = make_engine()
    log_probs, entropy = plain_forward(plain.model)
    output = bound.loss(loss_batch(batch, None, log_probs=log_probs, entropy=entropy))
    (output.sum / output.count).backward()
    expected = {name: parameter.grad for name, parameter in plain.model.named_parameters()}
    torch.testing.assert_close(actual, expected, atol=2e-6, rtol=1e-4)


def plain_forward(model) -> tuple[torch.Tensor, torch.Tensor]:
    rows, entropies = [], []
    for prompt, response in zip(TOKENS.prompts, TOKENS.responses, strict=True):
        logits = model(input_ids=torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        rows.append(logits.gather(-1, torch.tensor(response)[:, None]).squeeze(-1))
        entropies.append(-(logits.exp() * logits).sum(-1))
    return torch.cat(rows), torch.cat(entropies)


def test_gradient_checkpointing_changes_no_gradient(make_engine):
    bound = runtime()
    results = []
    for checkpointing in (False, True):
        engine = make_engine(lr=0.0, gradient_checkpointing=checkpointing)
        engine.update(TOKENS, prepared(bound, one_by_one(engine.model)), bound, 0)
        results.append(gradients(engine))
    for name in results[0]:
        torch.testing.assert_close(results[0][name], results[1][name], atol=1e-7, rtol=1e-5)


def test_10_a_fully_masked_batch_updates_nothing_and_the_next_step_trains_on(make_engine):
    bound = runtime()
    engine = make_engine(weight_decay=0.1)
    before = {name: value.clone() for name, value in engine.weights()}
    nothing = prepared(bound, one_by_one(engine.model), mask=[[0] * len(each) for each in TOKENS.responses])
    skipped = engine.update(TOKENS, nothing, bound, 0)
    assert not skipped.applied
    assert all(torch.equal(value, before[name]) for name, value in engine.weights())
    assert engine.update(TOKENS, prepared(bound, one_by_one(engine.model)), bound, 1).applied
    assert not all(torch.equal(value, before[name]) for name, value in engine.weights())


def test_the_gradient_is_clipped_to_its_norm(make_engine):
    bound = runtime()
    engine = make_engine(lr=0.0, clip_grad=0.01)
    update = engine.update(TOKENS, prepared(bound, one_by_one(engine.model)), bound, 0)
    norm = torch.stack([grad.norm() for grad in gradients(engine).values()]).norm().item()
    assert update.grad_norm > 0.01
    assert norm == pytest.approx(0.01, rel=1e-3)


def test_a_loss_that_is_not_finite_stops_the_run_before_the_weights_change(make_engine):
    bound = runtime()
    engine = make_engine()
    before = {name: value.clone() for name, value in engine.weights()}
    batch = prepared(bound, one_by_one(engine.model))
    broken = batch.with_values(advantages=torch.full_like(batch.advantages, torch.nan))
    with pytest.raises(RunError, match="the loss of step 4 is not finite"):
        engine.update(TOKENS, broken, bound, 3)
    assert all(torch.equal(value, before[name]) for name, value in engine.weights())


def test_the_learning_rate_warms_up(make_engine):
    bound = runtime()
    engine = make_engine(lr_warmup_steps=2)
    rates = [engine.update(TOKENS, prepared(bound, one_by_one(engine.model)), bound, i).lr for i in range(4)]
    assert rates == pytest.approx([0.0, 5e-4, 1e-3, 1e-3])


def test_33_entropy_is_not_computed_when_nothing_asks_for_it(make_engine):
    bound = runtime()
    for asked in (False, True):
        engine = make_engine(lr=0.0, entropy=asked)
        update = engine.update(TOKENS, prepared(bound, one_by_one(engine.model)), bound, 0)
        assert ("train/entropy" in update.metrics.partials) is asked


def test_a_checkpoint_loads_with_from_pretrained_and_goes_on_to_the_same_numbers(make_engine, tmp_path):
    bound = runtime()
    engine = make_engine(frozen=["reference"], moves_reference=True)
    batch = prepared(bound, one_by_one(engine.model))
    engine.update(TOKENS, batch, bound, 0)
    engine.refresh_reference()
    engine.save(tmp_path)

    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(value, dict(loaded.named_parameters())[name]) for name, value in engine.weights())
    assert AutoTokenizer.from_pretrained(tmp_path).eos_token == "<eos>"

    resumed = make_engine(frozen=["reference"], moves_reference=True)
    resumed.load(tmp_path)
    assert torch.equal(resumed.score(TOKENS, "reference"), engine.score(TOKENS, "reference"))
    for each in (engine, resumed):
        each.update(TOKENS, batch, bound, 1)
    after = dict(resumed.weights())
    assert all(torch.equal(value, after[name]) for name, value in engine.weights())


def test_a_damaged_checkpoint_is_named(make_engine, tmp_path):
    engine = make_engine()
    engine.save(tmp_path)
    (tmp_path / "trainer.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(LoadError, match=r"checkpoint '.*' cannot be read"):
        engine.load(tmp_path)


def test_the_reference_follows_the_actor_only_when_it_is_told_to(make_engine):
    bound = runtime()
    engine = make_engine(frozen=["reference"])
    before = engine.score(TOKENS, "reference")
    engine.update(TOKENS, prepared(bound, one_by_one(engine.model)), bound, 0)
    assert torch.equal(engine.score(TOKENS, "reference"), before)
    engine.refresh_reference()
    assert torch.equal(engine.score(TOKENS, "reference"), engine.score(TOKENS, "actor"))


def test_the_teachers_candidates_are_the_likeliest_and_the_policys_log_probs_of_them_have_a_gradient(make_engine):
    engine = make_engine(frozen=["teacher"], temperature=0.7, micro_batch_size=3)
    sampled, ids, log_probs = engine.candidates(TOKENS, 4)
    expected = []
    for prompt, response in zip(TOKENS.prompts, TOKENS.responses, strict=True):
        logits = engine.models["teacher"](input_ids=torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        expected.append((logits / 0.7).log_softmax(-1))
    top = torch.cat(expected).topk(4)
    assert torch.equal(ids, top.indices)
    assert torch.equal(sampled, engine.score(TOKENS, "teacher"))
    torch.testing.assert_close(log_probs, top.values, atol=2e-6, rtol=1e-5)

    part = prepared(runtime(), one_by_one(engine.model)).with_values(candidate_ids=ids)
    found = engine._forward(TOKENS, part)["candidate_log_probs"]
    torch.testing.assert_close(found, log_probs, atol=2e-6, rtol=1e-5)
    assert found.requires_grad


def test_one_seed_gives_one_gradient_bit_by_bit(make_engine):
    bound = runtime()
    engine = make_engine(lr=0.0)
    batch = prepared(bound, one_by_one(engine.model))
    found = []
    for _ in range(3):
        engine.update(TOKENS, batch, bound, 0)
        found.append(gradients(engine))
    assert all(torch.equal(found[0][name], other[name]) for other in found[1:] for name in found[0])
