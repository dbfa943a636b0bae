"""On-policy distillation, in the advantage and as a loss."""

from __future__ import annotations

import math

import pytest
import torch

from relax_core.conformance.case import replay
from tests.cases.build import as_batch, rollout, runtime
from tests.conftest import load_cases
from tests.runtime.test_vectors import TOLERANCE, largest_error

CASES = load_cases(lambda case: "opd" in case["config"]["algorithm"])

# One token, two candidates: the teacher says 0.8 and 0.2 (of 0.9 of its mass), the policy 0.5 and 0.5 (of 0.4).
TEACHER = torch.tensor([[0.72, 0.18]], dtype=torch.float64).log()
POLICY = torch.tensor([[0.2, 0.2]], dtype=torch.float64).log()
FORWARD = 0.8 * math.log(0.8 / 0.5) + 0.2 * math.log(0.2 / 0.5)
REVERSE = 0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.5 / 0.2)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_agrees_with_the_vector(case, dtype, registry):
    result = replay(case, registry, dtype)
    errors = {name: largest_error(result[name], value) for name, value in case["expected"].items()}
    assert {name: error for name, error in errors.items() if not error <= TOLERANCE[dtype]} == {}


def test_there_are_vectors():
    assert len(CASES) == 6


def jsd(beta: float) -> float:
    mixed = [beta * 0.8 + (1 - beta) * 0.5, beta * 0.2 + (1 - beta) * 0.5]
    teacher = 0.8 * math.log(0.8 / mixed[0]) + 0.2 * math.log(0.2 / mixed[1])
    policy = 0.5 * math.log(0.5 / mixed[0]) + 0.5 * math.log(0.5 / mixed[1])
    return beta * teacher + (1 - beta) * policy


def distilled(**config):
    """Loss, metrics and the gradient in the policy's candidate log-probs of one token."""
    bound = runtime(advantage_norm_mode="none", opd={"enable": True, "mode": "loss", **config})
    batch = rollout([[-1.0]], rewards=[2.0]).with_values(teacher_candidate_log_probs=TEACHER)
    prepared, found = bound.prepare(batch)
    leaf = POLICY.clone().requires_grad_()
    output = bound.loss(as_batch(prepared).with_values(candidate_log_probs=leaf))
    names = set(found.partials) | set(output.metrics.partials)
    return output.sum.item(), names, torch.autograd.grad(output.sum, leaf)[0]


@pytest.mark.parametrize(
    ("config", "value"),
    [
        ({"divergence": "forward"}, FORWARD),
        ({"divergence": "reverse"}, REVERSE),
        ({"divergence": "jsd"}, jsd(0.5)),
        ({"divergence": "jsd", "jsd_beta": 0.1}, jsd(0.1)),
        ({"divergence": "reverse", "loss_coef": 3.0}, 3 * REVERSE),
    ],
)
def test_the_divergence_by_hand(config, value):
    assert distilled(**config)[0] == pytest.approx(value, rel=1e-12)


def test_the_gradient_of_the_forward_divergence():
    """d/d(log p_i) of Σ q log(q/p) with p renormalised is p_i − q_i."""
    assert distilled(divergence="forward")[2].tolist()[0] == pytest.approx([0.5 - 0.8, 0.5 - 0.2])


def test_mixed_with_the_policy_loss():
    """On policy, advantage 2: the policy loss is −2."""
    assert distilled(loss_weight=0.25)[0] == pytest.approx(0.75 * -2.0 + REVERSE)
    assert distilled(loss_weight=0.0)[0] == pytest.approx(-2.0 + REVERSE)


def test_pure_distillation_skips_the_policy_loss_and_what_belongs_to_it():
    _, names, _ = distilled(loss_weight=1.0)
    assert "train/opd_divergence" in names
    assert not names & {"train/pg_loss", "train/pg_clipfrac", "train/is_approx_k3_kl", "rollout/adv_zero_ratio"}


def test_only_drops_the_rewards_advantage():
    extra = {"teacher_log_probs": [[-0.25], [-3.0]]}
    batch = rollout([[-1.0], [-2.0]], rewards=[1.0, 0.0], **extra)
    both, _ = runtime(advantage_norm_mode="group_mean", opd={"enable": True, "coef": 2.0}).prepare(batch)
    alone, _ = runtime(advantage_norm_mode="group_mean", opd={"enable": True, "coef": 2.0, "only": True}).prepare(batch)
    assert alone.advantages.tolist() == pytest.approx([2 * 0.75, 2 * -1.0])
    assert both.advantages.tolist() == pytest.approx([0.5 + 2 * 0.75, -0.5 + 2 * -1.0])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "RLX205 model.teacher_path: 'opd' needs a teacher. Fix: give model.teacher_path"),
        (
            ("--loss-weight", "1.5"),
            "RLX601 [opd] algorithm.opd.loss_weight: 1.5 is no share. Fix: write a number from 0 to 1",
        ),
        (
            ("--jsd-beta", "0"),
            "RLX602 [opd] algorithm.opd.jsd_beta: 0.0 leaves one side out. Fix: write a number between 0 and 1",
        ),
        (
            ("--algorithm.opd.top_k", "1"),
            "RLX603 [opd] algorithm.opd.top_k: one candidate renormalised has probability 1 under any policy. "
            "Fix: write 2 or more",
        ),
    ],
)
def test_what_start_up_says(relax, run_file, flags, message):
    result = relax("check", run_file(), "--algorithm.opd.enable", *flags)
    assert result.code == 1
    assert f"error: {message}" in result.out.splitlines()


def test_a_teacher_that_nothing_reads(relax, run_file):
    result = relax("check", run_file(), "--teacher-path", "x")
    assert result.code == 0
    assert "warning: RLX218 model.teacher_path: nothing in this run reads a teacher" in result.out
