"""The distributed tier: two gloo processes, and plugins that are right everywhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from sources import CLIPPED, estimator, loss

from relax_core.conformance.subject import Subject
from relax_core.conformance.targets import named
from relax_core.conformance.validation import validate

GMPO = Path(__file__).parents[2] / "examples/packages/relax-gmpo/src/relax_gmpo/__init__.py"
TIERS = ("static", "numeric", "distributed")

SUMMED = """
total = {}
if torch.distributed.is_initialized():
    torch.distributed.all_reduce(total)
"""
BROKEN = {
    "RLX901": estimator(
        SUMMED.format("rollout.batch_mean(rollout.rewards).reshape(1)")
        + "return Advantage(rollout.to_tokens(rollout.rewards - total))",
        "reward_shift_invariant=True",
    ),
    "RLX902": loss(
        CLIPPED + SUMMED.format("torch.ones(1, dtype=torch.float64)") + "return PolicyLoss(per_token + 0.01 * total)"
    ),
    "RLX903": estimator(
        "if torch.distributed.is_initialized() and len(rollout.rewards) > 6:\n    torch.distributed.barrier()\n"
        "return Advantage(rollout.to_tokens(rollout.rewards))"
    ),
}


def findings(path, **options):
    (plugin,), registry = named(str(path))
    return validate(plugin, registry, **options).findings


def test_a_differentiable_sequence_mean_is_whole_on_two_context_parallel_processes():
    (plugin,), registry = named(str(GMPO))
    subject = Subject(plugin, registry)
    assert subject.ranks.stopped == ["", ""]
    names = [set(outcomes) for outcomes in subject.ranks.outcomes]
    expected = {f"{hook}-0-{cut}" for hook in ("compute_advantage", "policy_loss") for cut in (0, 1)}
    assert names == [expected, expected]
    assert findings(GMPO, tiers=["distributed"]) == ()


@pytest.mark.slow
@pytest.mark.parametrize("id", BROKEN)
def test_a_plugin_that_only_two_processes_catch(plugin_file, id):
    found = findings(plugin_file(BROKEN[id]), tiers=TIERS)
    assert {finding.id for finding in found} == {id}, "\n".join(line for each in found for line in each.lines())
    assert all("--tier distributed" in finding.reproduce for finding in found)
