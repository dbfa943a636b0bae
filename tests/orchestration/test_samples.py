"""Which responses are recorded, and what of their training."""

from __future__ import annotations

import torch

from examples.tiny_model import byte_tokenizer
from relax_core.config import DataSection, ModelSection, OutputSection, RolloutSection, RunConfig
from relax_core.data.examples import Example
from relax_core.data.prompts import Prompt
from relax_core.data.rewards import Sample
from relax_core.orchestration.collect import Response, pack
from relax_core.orchestration.samples import shown
from relax_core.rollout.types import Completion

BYTES = byte_tokenizer()


def response(group, text, versions=None, raw_mask=()):
    token_ids = BYTES.encode(text)
    example = Example(id=f"row{group}", prompt="?", answer="!", metadata={})
    completion = Completion(
        token_ids, [-1.0] * len(token_ids), "stop", versions or [3] * len(token_ids), list(raw_mask)
    )
    sample = Sample(example.id, "?", text, "!", {}, [1], token_ids, "stop")
    return Response(Prompt(example, [1], "?"), completion, sample, group, score=float(group))


def config(**rollout):
    sections = {"model": ModelSection(path="m"), "data": DataSection(path="d", reward="exact_match")}
    settings = RolloutSection(n_samples_per_prompt=2, **rollout)
    return RunConfig(**sections, rollout=settings, output=OutputSection(samples_per_step=3))


def prepared(responses, raw, final, **settings):
    """A rollout with these masks, whose advantages count its tokens."""
    rollout = pack(responses, 3, (), torch.device("cpu"), **settings)
    masks = {name: torch.tensor(mask, dtype=torch.bool) for name, mask in (("raw_mask", raw), ("loss_mask", final))}
    return rollout.with_values(**masks, advantages=torch.arange(1.0, len(raw) + 1))


FOUR = [response(7, "ab"), response(7, "c"), response(8, "d12e", raw_mask=[True, False, False, True]), response(8, "f")]


def test_the_first_of_each_group_comes_first_with_its_own_tokens():
    rollout = prepared(FOUR, raw=[1, 1, 1, 1, 0, 0, 1, 1], final=[1, 0, 1, 1, 0, 0, 1, 1])
    found = shown(FOUR, rollout, config(), BYTES)
    assert [each["trajectory_id"] for each in found] == ["7-0", "8-0", "7-1"]
    assert [each["reward"] for each in found] == [7.0, 8.0, 7.0]
    assert found[0]["segments"] == [
        {"kind": "policy", "tool": None, "tokens": ["a", "b"], "mask": [1, 0], "advantages": [1.0, 2.0]}
    ]
    assert [(each["kind"], "".join(each["tokens"]), each["advantages"]) for each in found[1]["segments"]] == [
        ("policy", "d", [4.0]),
        ("observation", "12", [5.0, 6.0]),
        ("policy", "e", [7.0]),
    ]
    assert found[2]["segments"][0]["tokens"] == ["c"]


def test_tokens_of_older_weights_are_the_policys_own():
    stale = [response(7, "ab", versions=[2, 3])]
    rollout = prepared(stale, raw=[0, 1], final=[0, 1], mask_stale=True)
    (found,) = shown(stale, rollout, config(partial_rollout=True, mask_offpolicy_in_partial_rollout=True), BYTES)
    assert [each["kind"] for each in found["segments"]] == ["policy"]


def test_a_step_that_trained_on_nothing_shows_nothing():
    assert shown([], None, config(), BYTES) == []
