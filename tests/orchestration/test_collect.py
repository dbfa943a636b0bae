"""From completions to a packed rollout: what each token's weight version becomes."""

from __future__ import annotations

import torch

from relax_core.data.examples import Example
from relax_core.data.prompts import Prompt
from relax_core.orchestration.collect import Response, pack
from relax_core.orchestration.unfinished import Group
from relax_core.rollout.types import Completion

RESPONSES = [
    Completion([5, 6, 7], [-0.1, -0.2, -0.3], "stop", [1, 1, 3]),
    Completion([8], [-0.4], "length", [3]),
    Completion([9, 10], [-0.5, -0.6], "stop", [2, 3]),
]


def rollout(**options):
    prompt = Prompt(Example(id="p", prompt="p", answer=None, metadata={}), [1, 2], "p")
    responses = [Response(prompt, each, None, group=i // 2) for i, each in enumerate(RESPONSES)]
    return pack(responses, 3, (), torch.device("cpu"), **options)


def test_staleness_counts_versions_token_by_token():
    packed = rollout()
    assert packed.staleness.tolist() == [2, 2, 0, 0, 1, 0]
    assert packed.raw_mask.all()
    assert packed.rollout_log_probs.tolist() == torch.tensor([-0.1, -0.2, -0.3, -0.4, -0.5, -0.6]).tolist()


def test_tokens_of_older_weights_leave_the_raw_mask_when_asked():
    assert rollout(mask_stale=True).raw_mask.tolist() == [False, False, True, True, False, True]


def test_a_group_is_remembered_in_plain_values(tmp_path):
    group = Group(7, [RESPONSES[0], Completion([1], [-0.5], "abort", [2])])
    torch.save(group.state(), tmp_path / "state.pt")
    restored = Group.restored(torch.load(tmp_path / "state.pt", weights_only=True))
    assert restored == group
    assert (group.ended, Group(7).ended, Group(7, RESPONSES).ended) == (False, False, True)
