"""A number that goes wrong on Megatron's ranks is found as in the embedded engine: same words, same case, same way on."""

from __future__ import annotations

import json

import pytest

from tests.megatron.test_train import assert_same, flags_of, metrics
from tests.orchestration.test_incidents import LOSS

BROKEN = {
    "the loss of one sequence": (
        {"PER_TOKEN": "torch.where((context.step == 1) & (batch.sequence_ids == 2), torch.nan, per_token)"},
        "the loss of step 2 is not finite: policy_loss of plugin 'brittle', ",
    ),
    "an advantage": (
        {"ADVANTAGES": "torch.where(rollout.sequence_ids == 5, torch.inf, advantages)"},
        "the loss of step 1 is not finite: advantages of plugin 'brittle', ",
    ),
    "the backward pass": (
        {"PER_TOKEN": "per_token + 0 * (batch.log_probs - batch.log_probs.detach()).abs().sqrt()"},
        "the gradient of step 1 is not finite: every value is finite before the backward pass; the gradients of ",
    ),
    "the policy": (
        {},
        "the loss of step 1 is not finite: log_probs of actor, ",
    ),
}
DIVERGING = ("--lr", 1e30, "--num-steps-per-rollout", 2)


@pytest.fixture
def broken(relax, run_file, tmp_path):
    """Train a plugin with these expressions in it, and give what the engine said and the case that it left."""

    def run(engine, expressions, *flags, code=4):
        source = LOSS.replace("requires_entropy=ENTROPY", "supports_context_parallel=True")
        for name, plain in (("ADVANTAGES", "advantages"), ("PER_TOKEN", "per_token")):
            source = source.replace(name, expressions.get(name, plain))
        (tmp_path / "brittle.py").write_text(source)
        directory = tmp_path / engine
        chosen = ("--plugin", tmp_path / "brittle.py", "--advantage-estimator", "brittle", "--trainer.engine", engine)
        result = relax("train", run_file(), *chosen, "--num-rollout", 3, "--output.dir", directory, *flags)
        assert result.code == code, result.err
        (case,) = (directory / "incidents").iterdir()
        (said,) = [line for line in result.err.splitlines() if "is not finite" in line]
        return said.replace(str(directory), "DIRECTORY").replace(f"{engine} engine", "engine"), json.loads(
            case.read_text()
        )

    return run


FAST = {("the loss of one sequence", "cp2"), ("the backward pass", "pp2"), ("the policy", "dp2")}
PAIRS = [
    pytest.param(what, layout, marks=() if (what, layout) in FAST else pytest.mark.slow)
    for what in BROKEN
    for layout in ("tp2", "cp2", "pp2", "dp2")
]


@pytest.mark.parametrize(("what", "layout"), PAIRS)
def test_it_is_located_as_in_the_embedded_engine(broken, what, layout):
    expressions, start = BROKEN[what]
    flags = () if expressions else DIVERGING
    theirs, expected = broken("torch", expressions, *flags)
    mine, case = broken("megatron", expressions, *flags, *flags_of(layout))
    assert theirs.startswith(f"error: engine: {start}")
    assert mine == theirs
    assert case["config"] == expected["config"]
    for ours, other in zip(case["sequences"], expected["sequences"], strict=True):
        assert ours.keys() == other.keys()
        assert all(ours[name] == pytest.approx(other[name], rel=1e-4, nan_ok=True) for name in ours)


def test_an_update_may_be_skipped_and_no_weight_moves(broken, tmp_path):
    """The steps after it have the numbers that they have in the embedded engine, which never had that gradient."""
    expressions, _ = BROKEN["the loss of one sequence"]
    flags = ("--on-nonfinite", "skip", "--adam-eps", "1e-4")
    mine, _ = broken("megatron", expressions, *flags, *flags_of("tp2"), code=0)
    theirs, _ = broken("torch", expressions, *flags, code=0)
    assert mine == theirs
    found, expected = metrics(tmp_path / "megatron"), metrics(tmp_path / "torch")
    assert [each.get("train/nonfinite_updates") for each in found] == [None, 1.0, None]
    assert_same(found, expected)
