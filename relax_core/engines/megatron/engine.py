"""The training engine that drives Megatron-core's ranks from the process that generates and rewards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relax_core.batch import Rollout
from relax_core.binding import Binding
from relax_core.config import TopologySection
from relax_core.engines.megatron.export import write_model
from relax_core.engines.megatron.job import described
from relax_core.engines.megatron.ranks import RankGroup
from relax_core.engines.types import Policy, Tokens, Update
from relax_core.reductions import Metrics
from relax_core.runfile import ResolvedRun
from relax_core.runtime import Runtime

CRITIC = "critic"


@dataclass(frozen=True, slots=True)
class Role:
    """A model that the ranks hold: its Hugging Face directory, or a `dist_ckpt` of that shape, and the setting it is from."""

    path: Path
    hf: Mapping[str, Any]
    who: str
    dist_ckpt: Path | None = None

    def plain(self) -> dict[str, Any]:
        """As a rank gets it."""
        checkpoint = str(self.dist_ckpt) if self.dist_ckpt else None
        return {"path": str(self.path), "hf": dict(self.hf), "who": self.who, "dist_ckpt": checkpoint}


@dataclass(frozen=True, slots=True)
class Setting:
    """What the engine is made of. `known`: ids that the tokenizer has; `updates` is how many the schedule is for."""

    resolved: ResolvedRun
    binding: Binding
    models: Mapping[str, Role]
    known: int
    updates: int
    moves_reference: bool = False


class MegatronEngine:
    """A `TrainingEngine` whose model is spread over processes; what it is given and gives stays on the CPU.

    `ranks` are processes of the same layout that did another run before; left out, new ones.
    """

    device = torch.device("cpu")
    copies_weights = True

    def __init__(self, setting: Setting, tokenizer: Any, ranks: RankGroup | None = None) -> None:
        self.setting, self.tokenizer = setting, tokenizer
        self.vocabulary = min(setting.known, setting.models["actor"].hf["vocab_size"])
        job = {
            "run": described(setting.resolved, setting.binding),
            "models": {name: role.plain() for name, role in setting.models.items()},
            "vocabulary": setting.known,
            "updates": setting.updates,
        }
        self.ranks = ranks or start_ranks(setting.resolved.config.topology)
        self.ranks.call("open", job=job)

    def score(self, tokens: Tokens, policy: Policy) -> Tensor:
        """[T] log-probs of the response tokens under a policy."""
        return _assembled(self.ranks.call("score", tokens=_plain(tokens), policy=policy), tokens)[0]

    def candidates(self, tokens: Tokens, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The teacher's log-probs [T] of the response tokens, the ids [T, count] it finds likeliest there, and theirs."""
        answers = self.ranks.call("candidates", tokens=_plain(tokens), count=count)
        log_probs, ids, theirs = _assembled(answers, tokens)
        return log_probs, ids, theirs

    def update(self, tokens: Tokens, rollout: Rollout, runtime: Runtime, step: int) -> Update:
        """One optimizer update on a mini-batch, which the ranks share among them."""
        return _update(self.ranks, "actor", tokens, rollout, runtime, step)

    def refresh_reference(self) -> None:
        """Copy the actor into the reference."""
        self.ranks.call("refresh_reference")

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The actor's weights by name in Hugging Face form; a bucket of them is in memory at once."""
        for bucket in self.ranks.stream("weights", role="actor"):
            yield from bucket.items()

    def save(self, directory: Path) -> None:
        """A model for `from_pretrained`; beside it what training goes on from, in this or another layout."""
        write_model(self.weights(), self.setting.models["actor"].path, directory)
        self.tokenizer.save_pretrained(directory)
        moves = self.setting.moves_reference
        self.ranks.call("save", directory=str(directory.absolute()), role="actor", reference=moves)

    def load(self, directory: Path) -> None:
        """Go on from what `save` wrote."""
        moves = self.setting.moves_reference
        self.ranks.call("load", directory=str(directory.absolute()), role="actor", reference=moves)

    def close(self) -> None:
        """End the processes."""
        self.ranks.close()


def start_ranks(topology: TopologySection) -> RankGroup:
    """The processes of a layout; data-parallel ranks are those that the other sizes leave."""
    names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    return RankGroup(topology.ranks, {name: getattr(topology, name) for name in names})


class MegatronCritic:
    """A `CriticEngine` on the ranks of the actor."""

    def __init__(self, engine: MegatronEngine) -> None:
        self.engine, self.ranks = engine, engine.ranks

    def values(self, tokens: Tokens) -> Tensor:
        """[T] the value of the state before each response token."""
        return _assembled(self.ranks.call("values", tokens=_plain(tokens)), tokens)[0]

    def update(self, tokens: Tokens, rollout: Rollout, runtime: Runtime, step: int) -> Update:
        """One optimizer update on a mini-batch."""
        return _update(self.ranks, CRITIC, tokens, rollout, runtime, step)

    def save(self, directory: Path) -> None:
        """A directory that `from_pretrained` loads; what training goes on from in it."""
        place = directory / CRITIC
        weights = self.ranks.stream("weights", role=CRITIC)
        named = ((name, tensor) for bucket in weights for name, tensor in bucket.items())
        write_model(named, self.engine.setting.models[CRITIC].path, place, value_head=True)
        self.ranks.call("save", directory=str(place.absolute()), role=CRITIC)

    def load(self, directory: Path) -> None:
        """Go on from what `save` wrote."""
        self.ranks.call("load", directory=str((directory / CRITIC).absolute()), role=CRITIC)


def _plain(tokens: Tokens) -> list[list[list[int]]]:
    return [tokens.prompts, tokens.responses]


def _assembled(answers: list[dict[str, Any] | None], tokens: Tokens) -> list[Tensor]:
    """The ranks' values in the order of the batch."""
    parts = [answer for answer in answers if answer is not None]
    places = torch.cat([part["places"] for part in parts])
    total = sum(len(response) for response in tokens.responses)
    found = []
    for pieces in zip(*(part["values"] for part in parts), strict=True):
        values = torch.cat(pieces)
        found.append(values.new_zeros(total, *values.shape[1:]).index_copy(0, places, values))
    return found


def _update(ranks: RankGroup, role: str, tokens: Tokens, rollout: Rollout, runtime: Runtime, step: int) -> Update:
    plain = {
        "sequence_ids": rollout.sequence_ids,
        "tokens": dict(rollout.tokens),
        "sequences": dict(rollout.sequences),
    }
    active = runtime.binding.active
    states = {each.name: each.state for each in active if each.state}
    answers = ranks.call("update", tokens=_plain(tokens), rollout=plain, step=step, states=states, role=role)
    (answer,) = [each for each in answers if each is not None]
    for plugin in active:
        plugin.state.update(answer["states"].get(plugin.name, {}))
    return Update(Metrics.of(answer["metrics"]), answer["grad_norm"], answer["lr"], answer["applied"])
