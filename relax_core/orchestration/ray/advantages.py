"""The advantages role: what scores responses and runs the hooks of whole rollouts, in actors on CPUs."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
import torch
from torch import Tensor

from relax_core.batch import Rollout
from relax_core.binding import Binding
from relax_core.config import RunConfig
from relax_core.data.rewards import RewardBatch, RewardFunction, Sample
from relax_core.engines.job import Origin, bound, origins
from relax_core.engines.wire import decode, encode
from relax_core.orchestration.ray.waiting import gather
from relax_core.packing import plain, rollout_of
from relax_core.reductions import Metrics
from relax_core.runtime import Runtime
from relax_core.states import plain_states, put_states

CPU = torch.device("cpu")


class AdvantagesActor:
    """One process of the role. `files` are the reward's file by name, for a machine that does not have it."""

    def __init__(self, run: Mapping[str, Any], files: Mapping[str, str]) -> None:
        config, self.binding = bound(run)
        data, base = config.data, Path(run["base"])
        if not all((base / name).is_file() for name in files):
            base = Path(tempfile.mkdtemp(prefix="relax-reward-"))
            for name, text in files.items():
                (base / Path(name).name).write_text(text, encoding="utf-8")
        self.reward = RewardFunction(data.reward, data.reward_args, data.on_reward_error, base)
        self.runtime = Runtime.of(config, self.binding)

    def begin(self) -> dict[str, Origin]:
        """Where the plugins of this process are from."""
        return origins(self.binding)

    def score(self, samples: Sequence[Sample]) -> RewardBatch:
        """Their rewards."""
        return self.reward.score(samples)

    def call(self, message: bytes) -> bytes:
        """What a step of the runtime makes of a rollout, and of the plugins' states."""
        asked = decode(message)
        put_states(self.binding.active, asked["states"])
        result = getattr(self, asked["what"])(rollout_of(asked["rollout"], CPU), asked["step"])
        return encode({**result, "states": plain_states(self.binding.active)})

    def shape_rewards(self, rollout: Rollout, step: int) -> dict[str, Any]:
        return {"rollout": plain(self.runtime.shape_rewards(rollout, step))}

    def kept_groups(self, rollout: Rollout, step: int) -> dict[str, Any]:
        return {"keep": self.runtime.kept_groups(rollout, step)}

    def prepare(self, rollout: Rollout, step: int) -> dict[str, Any]:
        prepared, metrics = self.runtime.prepare(rollout, step)
        return {"rollout": plain(prepared), "metrics": metrics.plain()}


class RemoteReward:
    """The reward of a run, shared out among the actors of the role."""

    def __init__(self, actors: Sequence[Any], timeout: float) -> None:
        self._actors, self._timeout = actors, timeout

    def score(self, samples: Sequence[Sample]) -> RewardBatch:
        """The rewards of `samples`, in their order."""
        size = -(-len(samples) // len(self._actors)) or 1
        parts = [samples[start : start + size] for start in range(0, len(samples), size)]
        calls = {actor.score.remote(part): f"advantages {number}"
                 for number, (actor, part) in enumerate(zip(self._actors, parts, strict=False))}  # fmt: skip
        found: list[RewardBatch] = gather(calls, "score", self._timeout)
        failures = {text: sample for each in reversed(found) for text, sample in each.failures.items()}
        rewards = [reward for each in found for reward in each.rewards]
        return RewardBatch(rewards, sum(each.errors for each in found), failures)


class RemoteRuntime(Runtime):
    """A `Runtime` whose steps on whole rollouts are taken by the first actor of the role."""

    @classmethod
    def on(cls, actor: Any, config: RunConfig, binding: Binding) -> RemoteRuntime:
        """As `Runtime.of`."""
        runtime = cls.of(config, binding)
        assert isinstance(runtime, RemoteRuntime)
        runtime._actor, runtime._timeout = actor, config.topology.timeout
        return runtime

    _actor: Any
    _timeout: float

    def shape_rewards(self, rollout: Rollout, step: int = 0) -> Rollout:
        """As `Runtime`."""
        return rollout_of(self._call("shape_rewards", rollout, step)["rollout"], CPU)

    def kept_groups(self, rollout: Rollout, step: int = 0) -> Tensor:
        """As `Runtime`."""
        keep: Tensor = self._call("kept_groups", rollout, step)["keep"]
        return keep

    def prepare(self, rollout: Rollout, step: int = 0) -> tuple[Rollout, Metrics]:
        """As `Runtime`."""
        answer = self._call("prepare", rollout, step)
        return rollout_of(answer["rollout"], CPU), Metrics.of(answer["metrics"])

    def _call(self, what: str, rollout: Rollout, step: int) -> dict[str, Any]:
        states = plain_states(self.binding.active)
        message = encode({"what": what, "rollout": plain(rollout), "step": step, "states": states})
        (data,) = gather({self._actor.call.remote(message): "advantages 0"}, what, self._timeout)
        answer = decode(data)
        put_states(self.binding.active, answer["states"])
        return answer


def start_advantages(
    options: Sequence[Mapping[str, Any]], run: Mapping[str, Any], files: Mapping[str, str]
) -> list[Any]:
    """The actors of the role, which have begun to start."""
    actor = ray.remote(AdvantagesActor)
    return [actor.options(**each).remote(run, files) for each in options]
