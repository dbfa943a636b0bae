"""What an environment's trajectories are worth to the engine that trains: every sampled token, and nothing else."""

from __future__ import annotations

from contextlib import closing
from importlib.util import find_spec

import pytest
import torch

from relax_core.binding import bind
from relax_core.orchestration.collect import tokens_of
from relax_core.orchestration.start import start
from relax_core.runfile import read, resolve
from tests.conftest import EXAMPLES

VLLM = {"rollout.engine": "vllm"}
WAYS = {
    "embedded": {},
    "vllm": VLLM,
    "megatron": {**VLLM, "trainer.engine": "megatron", "topology.tensor_model_parallel_size": 2},
}
HERE = [
    pytest.param(settings, id=way, marks=() if way == "embedded" else pytest.mark.slow)
    for way, settings in WAYS.items()
    if way == "embedded" or (find_spec(way) and find_spec("vllm"))
]
TRAINING = [each for each in HERE if each.id != "vllm"]


FORGETFUL = """
from relax_core import Trajectory


async def generate(prompt, sampler):
    trajectory = Trajectory(prompt, 0.0)
    for left in range(3, 0, -1):
        turn = await sampler.sample(trajectory, max_tokens=5)
        await sampler.call(trajectory, len, turn.text, after=";")
        sampler.reset(trajectory, f"{left}+", turn.token_ids[:2], ":")
    return trajectory
"""


@pytest.fixture
def play(tmp_path):
    """Play one round of the calculator, and give what `look` makes of the run, the responses and their rollout."""

    def run(flags, look):
        settings = {
            "rollout.rollout_batch_size": 4,
            "rollout.n_samples_per_prompt": 8,
            "output.dir": str(tmp_path / "run"),
        }
        resolved = resolve(read(EXAMPLES / "calculator.yaml"), {**settings, **flags})
        binding = bind(resolved.registry, resolved.choice, resolved.config.algorithm)
        with closing(start(resolved, binding)) as job:
            kept = job.generation.next(0).kept
            return look(job, kept, job.generation.pack(kept, 0))

    return run


@pytest.mark.parametrize("flags", HERE)
def test_every_token_is_scored_as_it_was_sampled(play, flags):
    def gap(job, kept, rollout):
        assert (~rollout.raw_mask).sum() > 20, "the calculator was asked"
        scored = job.parts.engine.score(tokens_of(kept), "actor").cpu()
        return float((scored - rollout.rollout_log_probs.cpu()).abs()[rollout.raw_mask.cpu()].max())

    assert play(flags, gap) < 1e-4


@pytest.mark.parametrize("flags", HERE)
def test_what_was_read_in_place_of_a_context_is_read_again(play, tmp_path, flags):
    (tmp_path / "forgetful.py").write_text(FORGETFUL)

    def gap(job, kept, rollout):
        assert all(len(each.completion.resets) == 3 for each in kept)
        assert rollout.size == len(kept) == 32, "each is one sequence"
        scored = job.parts.engine.score(tokens_of(kept), "actor").cpu()
        return float((scored - rollout.rollout_log_probs.cpu()).abs()[rollout.raw_mask.cpu()].max())

    settings = {
        "rollout.environment.name": str(tmp_path / "forgetful.py"),
        "rollout.environment.max_context_tokens": 12,
    }
    assert play({**flags, **settings, "rollout.max_new_tokens": 60}, gap) < 1e-4


@pytest.mark.parametrize("flags", TRAINING)
def test_what_is_shown_to_the_policy_has_no_gradient(play, flags):
    def norm(spoilt):
        def update(job, kept, rollout):
            prepared, _ = job.parts.runtime.prepare(rollout, 0)
            where = ~prepared.raw_mask if spoilt == "shown" else prepared.raw_mask
            advantages = torch.where(where & bool(spoilt), 1e3, prepared.advantages)
            mine = prepared.with_values(advantages=advantages)
            return job.parts.engine.update(tokens_of(kept), mine, job.parts.runtime, 0).grad_norm

        return play(flags, update)

    plain = norm("")
    assert norm("shown") == pytest.approx(plain, rel=1e-6)
    assert norm("written") != pytest.approx(plain, rel=0.1)
