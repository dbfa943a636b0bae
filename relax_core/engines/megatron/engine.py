"""The training engine that drives Megatron-core's ranks from the process that generates and rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relax_core.config import TopologySection
from relax_core.engines.megatron.export import write_model
from relax_core.engines.megatron.ranks import RankGroup
from relax_core.engines.ranked import ACTOR, CRITIC, Groups, RankedCritic, RankedEngine, Setting


class MegatronEngine(RankedEngine):
    """A `TrainingEngine` whose model is spread over processes; what it is given and gives stays on the CPU.

    `groups` are processes that are there already; left out, new ones on this machine.
    """

    def __init__(self, setting: Setting, tokenizer: Any, groups: Groups | None = None) -> None:
        super().__init__(setting, tokenizer, groups or Groups(start_ranks(setting.resolved.config.topology)))

    def save(self, directory: Path) -> None:
        """A model for `from_pretrained`; beside it what training goes on from, in this or another layout."""
        write_model(self.weights(), self.setting.models[ACTOR].path, directory)
        self.tokenizer.save_pretrained(directory)
        super().save(directory)


class MegatronCritic(RankedCritic):
    """A `CriticEngine` whose model is spread over processes."""

    def save(self, directory: Path) -> None:
        """A directory that `from_pretrained` loads; what training goes on from in it."""
        weights = self.ranks.stream("weights", role=CRITIC)
        named = ((name, tensor) for bucket in weights for name, tensor in bucket.items())
        write_model(named, self.engine.setting.models[CRITIC].path, directory / CRITIC, value_head=True)
        super().save(directory / CRITIC)

    def load(self, directory: Path) -> None:
        """Go on from what `save` wrote."""
        super().load(directory / CRITIC)


def sizes_of(topology: TopologySection) -> dict[str, int]:
    """The sizes of a layout by Megatron-core's names; data-parallel ranks are those that the others leave."""
    names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    return {name: getattr(topology, name) for name in names}


def start_ranks(topology: TopologySection) -> RankGroup:
    """The processes of a layout on this machine."""
    return RankGroup(topology.ranks, sizes_of(topology))
