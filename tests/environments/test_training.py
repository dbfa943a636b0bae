"""What an environment added is context: no gradient comes of it, and no denominator counts it."""

from __future__ import annotations

import torch

from relax_core import TokenField
from relax_core.data.examples import Example
from relax_core.data.prompts import Prompt
from relax_core.orchestration.collect import Response, pack
from relax_core.orchestration.generation import Round
from relax_core.rollout.types import Completion

TOLD = Completion(
    [5, 6, 7, 8, 9],
    [-0.1, -0.2, 0.0, 0.0, -0.3],
    "stop",
    [3] * 5,
    [True, True, False, False, True],
    [0, 1.5, 0, 0, -1.0],
)
PLAIN = Completion([5, 6], [-0.1, -0.2], "stop", [3, 3])


def packed(*completions, fields=()):
    prompt = Prompt(Example(id="p", prompt="p", answer=None, metadata={}), [1, 2], "p")
    responses = [Response(prompt, each, None, group=0) for each in completions]
    return pack(responses, 3, fields, torch.device("cpu"))


def test_observations_are_not_in_the_raw_mask_and_turns_have_their_rewards():
    found = packed(TOLD, PLAIN, fields=[TokenField("turn_reward")])
    assert found.raw_mask.tolist() == [True, True, False, False, True, True, True]
    assert found.read("turn_reward").tolist() == [0, 1.5, 0, 0, -1.0, 0, 0]
    assert found.lengths.tolist() == [5, 2]


def test_observations_have_no_gradient_and_count_in_no_denominator(tmp_path, registry):
    """The loss of a response with observations is that of its other tokens, whatever log-probs those have."""
    from relax_core.binding import bind
    from relax_core.packing import loss_batch
    from relax_core.runfile import RunFile, resolve
    from relax_core.runtime import Runtime

    values = {"model": {"path": "m"}, "data": {"path": "d"}, "algorithm": {"advantage_estimator": "reinforce_plus_plus"},
              "rollout": {"n_samples_per_prompt": 2}}  # fmt: skip
    resolved = resolve(RunFile(tmp_path / "run.yaml", values, {}))
    runtime = Runtime.of(resolved.config, bind(resolved.registry, resolved.choice, resolved.config.algorithm))
    rollout = packed(TOLD, PLAIN).with_values(rewards=torch.tensor([1.0, 0.0]))
    rollout = rollout.with_values(old_log_probs=rollout.rollout_log_probs)
    prepared, _ = runtime.prepare(rollout, 0)
    assert prepared.advantages[2:4].tolist() == [0, 0]
    gradients, sums = [], []
    for observed in (0.0, -50.0):
        log_probs = rollout.rollout_log_probs.clone()
        log_probs[2:4] = observed
        log_probs.requires_grad_()
        reduced = runtime.loss(loss_batch(prepared, log_probs=log_probs), 0)
        reduced.sum.backward()
        gradients.append(log_probs.grad)
        sums.append((float(reduced.sum.detach()), int(reduced.count)))
    assert sums[0] == sums[1]
    assert sums[0][1] == 5
    assert gradients[0].tolist() == gradients[1].tolist()
    assert gradients[0][2:4].tolist() == [0, 0]
    assert (gradients[0][[0, 1, 4]] != 0).all()


def test_a_round_is_remembered_with_masks_rewards_and_counts(tmp_path):
    completion = Completion(*TOLD.row()[:6], 0.5, {"turns": 2})
    state = {"kept": [(4, completion.row(), 0.5, 0.5)], "counts": dict(Round().counts)}
    torch.save(state, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    assert Completion(*loaded["kept"][0][1]) == completion
