"""The run as it will be, and what may be wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from relax_core.redaction import redacted

if TYPE_CHECKING:
    from relax_core.config import RunConfig


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that would go wrong: a stable `code`, the `setting` at fault, the `problem`, and what to write instead."""

    code: str
    setting: str
    problem: str
    fix: str
    severity: Literal["error", "warning"] = "error"
    plugin: str = ""

    @property
    def message(self) -> str:
        """One line."""
        owner = f" [{self.plugin}]" if self.plugin else ""
        return redacted(f"{self.code}{owner} {self.setting}: {self.problem}. Fix: {self.fix}")


@dataclass(frozen=True, slots=True)
class Topology:
    """The resolved run: `roles` of actor, critic, reference, teacher, rollout; sizes; and the configuration as `run`."""

    run: RunConfig
    roles: frozenset[str]

    @property
    def mode(self) -> str:
        return self.run.trainer.mode

    @property
    def max_staleness(self) -> int:
        """Versions between the weights that sampled a token and those that train on it, at most."""
        given = self.run.trainer.max_staleness
        return given if given is not None else int(self.mode != "sync")

    @property
    def context_parallel_size(self) -> int:
        return self.run.topology.context_parallel_size

    @property
    def n_samples_per_prompt(self) -> int:
        return self.run.rollout.n_samples_per_prompt

    @property
    def rollout_batch_size(self) -> int:
        return self.run.rollout.rollout_batch_size

    @property
    def sequences_per_rollout(self) -> int:
        return self.rollout_batch_size * self.n_samples_per_prompt

    @property
    def num_steps_per_rollout(self) -> int:
        """Updates in each rollout."""
        if self.run.trainer.num_steps_per_rollout is not None:
            return self.run.trainer.num_steps_per_rollout
        if self.run.trainer.global_batch_size is None:
            return 1
        return max(self.sequences_per_rollout // self.run.trainer.global_batch_size, 1)

    @property
    def global_batch_size(self) -> int:
        """Sequences in each update."""
        return self.run.trainer.global_batch_size or self.sequences_per_rollout // self.num_steps_per_rollout

    @property
    def updates(self) -> int:
        """Updates in the run."""
        return self.run.trainer.num_rollout * self.num_steps_per_rollout

    @property
    def on_policy(self) -> bool:
        """Whether every update trains on what the current weights sampled."""
        return self.mode == "sync" and self.num_steps_per_rollout == 1 and not self.run.rollout.partial_rollout
