"""From a resolved run to its actors: who is started, with what, and that all of them have the driver's plugins."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from relax_core.binding import Binding
from relax_core.engines.hf_model import load_skeleton
from relax_core.engines.job import compare, described, origins
from relax_core.engines.megatron.engine import MegatronCritic, MegatronEngine, sizes_of
from relax_core.engines.ranked import Groups, RankedCritic, RankedEngine
from relax_core.orchestration.assemble import Inputs, Parts, check_candidates, read_inputs
from relax_core.orchestration.ray.advantages import RemoteReward, RemoteRuntime, start_advantages
from relax_core.orchestration.ray.cluster import join, leave
from relax_core.orchestration.ray.placement import Placement, shared_gpus
from relax_core.orchestration.ray.ranks import RayRanks
from relax_core.orchestration.ray.sampler import RaySampler
from relax_core.orchestration.ray.waiting import gather
from relax_core.orchestration.roles import setting_of
from relax_core.runfile import ResolvedRun


class Cast:
    """The actors of a run by role, and the run's `parts` that they play; `undo` ends them, the last first."""

    def __init__(self, resolved: ResolvedRun, binding: Binding, undo: ExitStack) -> None:
        self.resolved, self.binding = resolved, binding
        self.config, self.settings = resolved.config, resolved.config.topology
        self.patience = self.settings.start_timeout
        inputs = read_inputs(resolved, binding, load_skeleton)
        self.tokenizer = inputs.tokenizer
        self.setting = setting_of(resolved, binding, inputs.topology, inputs.tokenizer)
        if join(self.settings):
            undo.callback(leave)
        self.placement = Placement(inputs.topology)
        undo.callback(self.placement.close)
        run = described(resolved, binding)
        judges = start_advantages(self.placement.options("advantages"), run, _reward_file(resolved))
        self.groups = self._groups()
        undo.callback(lambda: self.groups.close())  # those of then: trainers may start again
        self.sampler = self._sampler(run, inputs)
        undo.callback(self.sampler.close)
        self._compare(judges)
        self.engine = self._engine()
        check_candidates(self.engine, binding.most("candidates"))
        self.parts = self._parts(inputs, judges)

    def publish(self, version: int) -> None:
        """Have the engines that sample take the actor's weights, from where these are to where those are."""
        ranks = self.engine.groups.actor
        assert isinstance(ranks, RayRanks)
        self.sampler.update_weights(ranks.refs("weights", role="actor"), version)

    def restart_trainers(self) -> None:
        """New processes for the actor and the roles beside it, with the models that the run began with."""
        self.groups.close()
        self.groups = self.engine.groups = self._groups()
        self._wait_for_ranks()
        self.engine.open()

    def _compare(self, judges: list[Any]) -> None:
        """Everyone who needs no model under training: whoever has other plugins is named before one is loaded."""
        names = [f"advantages {number}" for number in range(len(judges))]
        begun = gather(dict(zip([each.begin.remote() for each in judges], names, strict=True)), "start", self.patience)
        begun += self.sampler.begin(self.patience)
        names += self.sampler.names
        compare(dict(zip(names, begun, strict=True)), origins(self.binding))

    def _sampler(self, run: dict[str, Any], inputs: Inputs) -> RaySampler:
        rollout = self.config.rollout
        return RaySampler(
            self._rollout_options(),
            (run, str(inputs.path), inputs.longest),
            group=rollout.n_samples_per_prompt,
            whole=rollout.engine == "hf" and self.config.trainer.mode != "async",
            at_once=rollout.engine == "vllm",
            max_restarts=self.settings.max_restarts,
            timeout=self.settings.timeout,
        )

    def _rollout_options(self) -> list[dict[str, Any]]:
        """With the GPUs of the ranks that an engine shares them with, where it does."""
        if not self.settings.resources.rollout.colocated:
            return self.placement.options("rollout")
        actor = self.groups.actor
        assert isinstance(actor, RayRanks)
        devices, size = actor.devices(self.patience), self.config.rollout.tensor_parallel_size
        count = self.settings.resources.rollout.actors
        shares = [shared_gpus(devices[number * size : (number + 1) * size]) for number in range(count)]
        return self.placement.options("rollout", shares)

    def _engine(self) -> RankedEngine:
        self._wait_for_ranks()
        kind = MegatronEngine if self.config.trainer.engine == "megatron" else RankedEngine
        return kind(self.setting, self.tokenizer, self.groups)

    def _wait_for_ranks(self) -> None:
        for ranks, _ in self.groups.all():
            assert isinstance(ranks, RayRanks)
            ranks.ready(self.patience)

    def _groups(self) -> Groups:
        roles = [role for role in ("critic", "reference", "teacher") if self.placement.options(role)]
        return Groups(self._ranks("actor"), {role: self._ranks(role) for role in roles})

    def _ranks(self, role: str) -> RayRanks:
        name = "rank" if role == "actor" else f"{role} rank"
        sizes = sizes_of(self.settings)
        return RayRanks(name, self.config.trainer.engine, self.placement.options(role), sizes, self.settings)

    def _parts(self, inputs: Inputs, judges: list[Any]) -> Parts:
        critic = MegatronCritic if self.config.trainer.engine == "megatron" else RankedCritic
        reward = RemoteReward(judges, self.settings.timeout)
        runtime = RemoteRuntime.on(judges[0], self.config, self.binding)
        return inputs.parts(
            self.engine,
            critic(self.engine) if "critic" in self.setting.models else None,
            self.sampler,
            reward,
            runtime,
            self.binding.most("reference_update_interval"),
        )


def _reward_file(resolved: ResolvedRun) -> dict[str, str]:
    """The text of the reward's file by its name, where it has one."""
    name = resolved.config.data.reward.partition(":")[0]
    path = resolved.base / name
    return {name: path.read_text(encoding="utf-8")} if name.endswith(".py") and path.is_file() else {}
