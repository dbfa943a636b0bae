"""What a plugin declares about itself. Facts are stated once here and read by the start-up check, the CLI and the docs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict

HOOK_API = 1
SUPPORTED_HOOK_APIS = (1,)
"""Versions of the contract whose plugins load; docs/versioning.md says how long an old one stays."""

T = TypeVar("T")
Declared: TypeAlias = T | Callable[[Any], T]
"""A capability: a value, or a function of the plugin's config that gives it."""

NormalizationName = Literal["none", "unbiased", "population"]
RoleName = Literal["estimator", "loss", "component"]
BATCH_FIELDS: Mapping[str, str] = {
    "raw_mask": "",
    "loss_mask": "",
    "log_probs": "",
    "old_log_probs": "requires_old_log_probs",
    "advantages": "",
    "returns": "",
    "old_values": "",
    "staleness": "",
    "rewards": "",
    "unshaped_rewards": "",
    "group_ids": "",
    "lengths": "",
    "finish_reasons": "",
    "entropy": "requires_entropy",
    "values": "requires_critic",
    "ref_log_probs": "requires_reference",
    "rollout_log_probs": "requires_rollout_log_probs",
    "teacher_log_probs": "requires_teacher",
    "candidate_ids": "candidates",
    "candidate_log_probs": "candidates",
    "teacher_candidate_log_probs": "candidates",
}
"""What a batch holds by itself, with the capability that asks for it where not every run has it.

Old log-probs are in every loss batch: where a rollout needs none and has one update, they are those of the update itself.
"""
TURN_REWARD = "turn_reward"
"""The token field that environments fill: the reward of a turn on its last token, 0 elsewhere."""
KL_LOSSES = frozenset({"loss:k1", "loss:k2", "loss:k3"})


class AlgorithmConfig(BaseModel):
    """Base of a plugin's own fields. Strict: an unknown key or a wrong type is an error.

    A docstring under a field documents it.
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True, validate_default=True
    )


class ComponentConfig(AlgorithmConfig):
    """Base of a component's section."""

    enable: bool = False
    """Switch this component on."""


@dataclass(frozen=True, slots=True)
class TokenField:
    """A per-token value [T] that the data layer or the rollout engine fills, beside the built-in ones."""

    name: str
    summary: str = ""


@dataclass(frozen=True, slots=True)
class SequenceField:
    """A per-sequence value [S] that the data layer or the rollout engine fills, beside the built-in ones."""

    name: str
    summary: str = ""


def how_to_get(field: str) -> str:
    """What a plugin declares to find this field in its batches."""
    if capability := BATCH_FIELDS.get(field, ""):
        return f"declare {'candidates=K' if capability == 'candidates' else capability}"
    return f"declare TokenField('{field}') or SequenceField('{field}') in the spec"


@dataclass(frozen=True, slots=True)
class Flag:
    """A second name on the command line: its value goes to `fields`; the constants in `sets` need no value.

    Names are relative to the plugin's own section: `Flag("--eps-clip", ("clip_low", "clip_high"))`,
    `Flag("--use-tis", sets={"enable": True, "action": "clip"})`.
    """

    name: str
    fields: tuple[str, ...] = ()
    sets: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What any role may need. `formula` is its text in the comparison table; `config` its fields, where not the spec's.

    `requires_old_log_probs`: a hook that is given a rollout reads them; a loss batch has them in any case.
    """

    formula: str = ""
    config: type[AlgorithmConfig] | None = None
    requires_reference: Declared[bool] = False
    requires_teacher: Declared[bool] = False
    requires_rollout_log_probs: Declared[bool] = False
    requires_old_log_probs: Declared[bool] = False
    requires_entropy: Declared[bool] = False
    supports_async: Declared[bool] = True
    max_staleness: Declared[int | None] = None
    kl_modes: Declared[frozenset[str]] = KL_LOSSES
    candidates: Declared[int] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator(Role):
    """The role of `compute_advantage`. `default=True`: the one that a run file gets which names none.

    `default_loss` names the policy loss of a run that names none, for an estimator that brings no loss of its own.
    `per_token`: the tokens of a sequence may have advantages of their own. `reward_shift_invariant` and
    `reward_scale_invariant`: adding to all rewards, or multiplying them by, a positive constant changes no advantage;
    where the first says nothing, it holds for an estimator that needs groups. `relax plugins validate` proves all three.
    """

    requires_critic: Declared[bool] = False
    min_group_size: Declared[int] = 1
    requires_equal_groups: Declared[bool] = False
    normalization: Declared[NormalizationName] = "unbiased"
    normalization_use: Declared[Literal["required", "allowed", "forbidden"]] = "allowed"
    per_token: Declared[bool] = False
    reward_shift_invariant: Declared[bool | None] = None
    reward_scale_invariant: Declared[bool] = False
    default: bool = False
    default_loss: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss(Role):
    """The role of `policy_loss`. `aggregations` None allows all; `surrogate_gradient` says why finite differences differ.

    `default_estimator` names the estimator of a run that chooses this plugin as a whole, where it brings none of its own.
    """

    supports_context_parallel: Declared[bool] = False
    scope: Declared[Literal["token", "sequence", "microbatch"]] = "token"
    requires_on_policy: Declared[bool] = False
    aggregations: Declared[frozenset[str] | None] = None
    policy_gradient: Declared[bool] = True
    surrogate_gradient: str = ""
    default_estimator: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component(Role):
    """A mask, weight, loss term, reward shaper or filter beside the chosen algorithm.

    `section` is where its fields stand in `algorithm` (default: the plugin's name; "" puts them beside the estimator).
    `enabled` says from its config whether it is active (default: its `enable`). `kl` is the KL loss that it adds, as in
    `kl_modes`. `reference_update_interval` copies the actor into the reference after every N steps. `policy_weight`
    scales the policy loss; 0 skips it. `replaces_advantage`: what the estimator gives does not reach the loss, so its
    diagnostics are left out.
    """

    section: str | None = None
    enabled: Callable[[Any], bool] | None = None
    supports_context_parallel: Declared[bool] = False
    kl: Declared[str | None] = None
    reference_update_interval: Declared[int] = -1
    policy_weight: Declared[float] = 1.0
    replaces_advantage: Declared[bool] = False


@dataclass(frozen=True, slots=True)
class AlgorithmSpec:
    """A plugin's declaration: `name`, a one-line `summary`, where it was published, its fields and its roles."""

    name: str
    summary: str
    paper: str = ""
    config: type[AlgorithmConfig] | None = None
    estimator: Estimator | None = None
    loss: Loss | None = None
    component: Component | None = None
    kl: str = ""
    fields: tuple[TokenField | SequenceField, ...] = ()
    flags: tuple[Flag, ...] = ()
    hook_api: int = field(default=HOOK_API, kw_only=True)

    @property
    def roles(self) -> dict[RoleName, Role]:
        """The declared roles by name."""
        found: dict[RoleName, Role | None] = {
            "estimator": self.estimator,
            "loss": self.loss,
            "component": self.component,
        }
        return {name: role for name, role in found.items() if role is not None}

    @property
    def section(self) -> str:
        """Where the fields stand inside `algorithm`; "" for directly in it."""
        if self.component is None:
            return ""
        return self.name if self.component.section is None else self.component.section

    @property
    def prefix(self) -> str:
        """What stands before the name of a field in its dotted path."""
        return f"algorithm.{self.section}." if self.section else "algorithm."

    def config_of(self, role: RoleName) -> type[AlgorithmConfig]:
        """The class of the fields that a role reads."""
        return self.roles[role].config or self.config or AlgorithmConfig


def capability(role: Role, name: str, config: Any) -> Any:
    """The value of a capability under a config."""
    value = getattr(role, name)
    return value(config) if callable(value) else value
