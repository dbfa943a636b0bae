"""Engines whose models live in other processes: asked together, answering with their parts of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from relax_core.batch import Rollout
from relax_core.binding import Binding
from relax_core.engines.job import compare, described, origins
from relax_core.engines.types import Policy, Tokens, Update
from relax_core.faults import NotFinite, locate
from relax_core.packing import critic_batch, loss_batch, plain
from relax_core.reductions import Metrics
from relax_core.runfile import ResolvedRun
from relax_core.runtime import Runtime
from relax_core.states import plain_states, put_states

ACTOR, CRITIC = "actor", "critic"


class Ranks(Protocol):
    """Processes that do what they are told together. `name` is what a message calls one of them, before its number."""

    name: str

    def call(self, command: str, **arguments: Any) -> list[Any]:
        """Every rank's answer to a command, in the order of ranks."""

    def stream(self, command: str, **arguments: Any) -> Iterator[Any]:
        """What the ranks give to a command piece by piece."""

    def close(self) -> None:
        """End the processes."""


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


@dataclass(frozen=True, slots=True)
class Groups:
    """The processes of the actor, and those of the roles that have their own."""

    actor: Ranks
    apart: Mapping[str, Ranks] = field(default_factory=dict)

    def of(self, role: str) -> Ranks:
        """Where a role's model lives."""
        return self.apart.get(role, self.actor)

    def all(self) -> Iterator[tuple[Ranks, frozenset[str]]]:
        """Each group once, with the roles that it alone has; the actor's, which has the others, with none."""
        yield self.actor, frozenset()
        yield from ((ranks, frozenset({role})) for role, ranks in self.apart.items())

    def close(self) -> None:
        """End the processes."""
        for ranks, _ in self.all():
            ranks.close()


class RankedEngine:
    """A `TrainingEngine` whose models are spread over processes; what it is given and gives stays on the CPU."""

    device = torch.device("cpu")
    copies_weights = True

    def __init__(self, setting: Setting, tokenizer: Any, groups: Groups) -> None:
        self.setting, self.tokenizer, self.groups = setting, tokenizer, groups
        self.vocabulary = min(setting.known, setting.models[ACTOR].hf["vocab_size"])
        self.open()

    def open(self) -> None:
        """Have every process load its plugins and its models. Raises LoadError where a plugin is another one there."""
        found: dict[str, Any] = {}
        for ranks, own in self.groups.all():
            answers = ranks.call("open", job=self._job(own or self.setting.models.keys() - self.groups.apart.keys()))
            found |= {f"{ranks.name} {number}": each for number, each in enumerate(answers)}
        compare(found, origins(self.setting.binding))

    def score(self, tokens: Tokens, policy: Policy) -> Tensor:
        """[T] log-probs of the response tokens under a policy."""
        answers = self.groups.of(policy).call("score", tokens=_plain(tokens), policy=policy)
        return _assembled(answers, tokens)[0]

    def candidates(self, tokens: Tokens, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The teacher's log-probs [T] of the response tokens, the ids [T, count] it finds likeliest there, and theirs."""
        answers = self.groups.of("teacher").call("candidates", tokens=_plain(tokens), count=count)
        log_probs, ids, theirs = _assembled(answers, tokens)
        return log_probs, ids, theirs

    def update(self, tokens: Tokens, rollout: Rollout, runtime: Runtime, step: int) -> Update:
        """One optimizer update on a mini-batch, which the ranks share among them."""
        return _update(self.groups.actor, ACTOR, tokens, rollout, runtime, step)

    def refresh_reference(self) -> None:
        """Copy the actor into the reference."""
        self.groups.actor.call("refresh_reference")

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The actor's weights by name in Hugging Face form; a bucket of them is in memory at once."""
        for bucket in self.groups.actor.stream("weights", role=ACTOR):
            yield from bucket.items()

    def save(self, directory: Path) -> None:
        """A model for `from_pretrained`, and what training goes on from."""
        moves = self.setting.moves_reference
        self.groups.actor.call("save", directory=str(directory.absolute()), role=ACTOR, reference=moves)

    def load(self, directory: Path) -> None:
        """Go on from what `save` wrote."""
        moves = self.setting.moves_reference
        self.groups.actor.call("load", directory=str(directory.absolute()), role=ACTOR, reference=moves)

    def close(self) -> None:
        """End the processes."""
        self.groups.close()

    def _job(self, roles: Any) -> dict[str, Any]:
        setting = self.setting
        return {
            "run": described(setting.resolved, setting.binding),
            "models": {name: setting.models[name].plain() for name in sorted(roles)},
            "vocabulary": setting.known,
            "updates": setting.updates,
        }


class RankedCritic:
    """A `CriticEngine` on the ranks of the actor, or on its own."""

    def __init__(self, engine: RankedEngine) -> None:
        self.engine = engine

    @property
    def ranks(self) -> Ranks:
        """Where it lives."""
        return self.engine.groups.of(CRITIC)

    def values(self, tokens: Tokens) -> Tensor:
        """[T] the value of the state before each response token."""
        return _assembled(self.ranks.call("values", tokens=_plain(tokens)), tokens)[0]

    def update(self, tokens: Tokens, rollout: Rollout, runtime: Runtime, step: int) -> Update:
        """One optimizer update on a mini-batch."""
        return _update(self.ranks, CRITIC, tokens, rollout, runtime, step)

    def save(self, directory: Path) -> None:
        """A directory that `from_pretrained` loads, and what training goes on from."""
        self.ranks.call("save", directory=str(directory.absolute()), role=CRITIC)

    def load(self, directory: Path) -> None:
        """Go on from what `save` wrote."""
        self.ranks.call("load", directory=str(directory.absolute()), role=CRITIC)


def _plain(tokens: Tokens) -> list[Any]:
    return [tokens.prompts, tokens.responses, tokens.resets]


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


def _update(ranks: Ranks, role: str, tokens: Tokens, rollout: Rollout, runtime: Runtime, step: int) -> Update:
    active = runtime.binding.active
    states = plain_states(active)
    answers = ranks.call("update", tokens=_plain(tokens), rollout=plain(rollout), step=step, states=states, role=role)
    if wrong := [each for each in answers if each is not None and "nonfinite" in each]:
        raise _located(wrong, tokens, rollout, runtime, step)
    (answer,) = [each for each in answers if each is not None]
    put_states(active, answer["states"])
    return Update(Metrics.of(answer["metrics"]), answer["grad_norm"], answer["lr"], answer["applied"])


def _located(answers: list[dict[str, Any]], tokens: Tokens, rollout: Rollout, runtime: Runtime, step: int) -> NotFinite:
    """What the ranks say is not finite, with the mini-batch put together and looked through."""
    error = NotFinite(**answers[0]["nonfinite"])
    error.parameters = list(dict.fromkeys(name for each in answers for name in each["nonfinite"]["parameters"]))
    parts = [each for each in answers if "values" in each]
    if parts:
        found = dict(zip(parts[0]["names"], _assembled(list(parts), tokens), strict=True))
        is_actor = "log_probs" in found
        error.batch = loss_batch(rollout, None, **found) if is_actor else critic_batch(rollout, found["values"])
        error.faults = locate(runtime, error.batch, step)
    return error
