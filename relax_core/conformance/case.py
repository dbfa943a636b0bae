"""One algorithm on given numbers: a case in the format of the golden vectors, through the real runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from relax_core.batch import CriticBatch, LossBatch, Rollout, build
from relax_core.binding import bind
from relax_core.compose import choose, compose
from relax_core.context import Context
from relax_core.errors import UsageError, nearest
from relax_core.registry import Registry, spec_of
from relax_core.runtime import Runtime
from relax_core.spec import SequenceField, TokenField

TOKEN_FIELDS = {
    "old_logp": "old_log_probs",
    "rollout_logp": "rollout_log_probs",
    "ref_logp": "ref_log_probs",
    "teacher_logp": "teacher_log_probs",
    "values": "values",
}
OTHER_KEYS = {"group", "reward", "mask", "logp", "entropy", "returns", "new_values"}


def runtime_for(case: Mapping[str, Any], registry: Registry) -> Runtime:
    """The algorithm of a case. Rules about runs do not apply: a case is mathematics."""
    raw = {"advantage_estimator": case["algorithm"], **case.get("config", {}).get("algorithm", {})}
    choice = choose(registry, raw)
    algorithm = compose(registry, choice).model_validate(raw)
    return Runtime(
        bind(registry, choice, algorithm),
        aggregation=algorithm.loss_agg_mode,
        length=algorithm.loss_agg_length or 1,
        normalize_advantages=algorithm.normalize_advantages,
    )


def rollout_of(
    case: Mapping[str, Any], dtype: torch.dtype, fields: Sequence[TokenField | SequenceField] = ()
) -> Rollout:
    """The sequences of a case, packed, with these fields of plugins."""
    sequences = case["sequences"]
    lengths = torch.tensor([len(each["mask"]) for each in sequences])
    groups = {group: index for index, group in enumerate(dict.fromkeys(each["group"] for each in sequences))}
    tokens = {name: _pack(sequences, key, dtype) for key, name in TOKEN_FIELDS.items() if key in sequences[0]}
    tokens |= {each.name: _pack(sequences, each.name, dtype) for each in fields if isinstance(each, TokenField)}
    tokens["raw_mask"] = _pack(sequences, "mask", torch.bool)
    per_sequence = {
        "rewards": torch.tensor([each["reward"] for each in sequences], dtype=dtype),
        "group_ids": torch.tensor([groups[each["group"]] for each in sequences]),
        "lengths": lengths,
    }
    for each in fields:
        if isinstance(each, SequenceField):
            per_sequence[each.name] = torch.tensor([row[each.name] for row in sequences], dtype=dtype)
    ids = torch.repeat_interleave(torch.arange(len(sequences)), lengths)
    rollout: Rollout = build(Rollout, ids, tokens, per_sequence)
    return rollout


def declared_fields(case: Mapping[str, Any], registry: Registry) -> list[TokenField | SequenceField]:
    """The fields of a case that are a plugin's own. Raises `UsageError` for a key that nothing reads."""
    declared = {field.name: field for plugin in registry.usable for field in spec_of(plugin).fields}
    given = sorted(case["sequences"][0].keys() - TOKEN_FIELDS.keys() - OTHER_KEYS)
    for name in given:
        if name not in declared:
            fix = nearest(name, [*declared, *TOKEN_FIELDS, *OTHER_KEYS]) or "leave it out, or declare it in the spec"
            raise UsageError(f"nothing reads '{name}'", who="sequences", fix=fix)
    return [declared[name] for name in given]


def loss_batch_of(case: Mapping[str, Any], rollout: Rollout, log_probs: Tensor) -> LossBatch:
    """The whole case as one micro-batch."""
    tokens = {**rollout.tokens, "log_probs": log_probs}
    if "entropy" in case["sequences"][0]:
        tokens["entropy"] = _pack(case["sequences"], "entropy", log_probs.dtype)
    batch: LossBatch = build(LossBatch, rollout.sequence_ids, tokens, rollout.sequences)
    return batch


def replay(case: Mapping[str, Any], registry: Registry, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """Compute a case: the values of `expected` in its format, lists per sequence."""
    runtime = runtime_for(case, registry)
    if "new_values" in case["sequences"][0]:
        return _replay_values(case, runtime, dtype)
    rollout = rollout_of(case, dtype, declared_fields(case, registry))
    rollout, _ = runtime.prepare(runtime.shape_rewards(rollout))
    log_probs = _pack(case["sequences"], "logp", dtype).requires_grad_()
    batch = loss_batch_of(case, rollout, log_probs)
    output = runtime.loss(batch)
    loss = output.sum / output.count.clamp(min=1)
    (gradient,) = torch.autograd.grad(loss, log_probs)
    per_token = torch.where(batch.loss_mask, runtime.policy_loss(batch).per_token, 0.0)
    result = {
        "advantages": rollout.advantages,
        "loss_mask": rollout.loss_mask.long(),
        "per_token_loss": per_token,
        "grad_logp": gradient,
        **_parts(runtime, rollout, batch),
    }
    lengths = rollout.lengths.tolist()
    return {
        **{name: _unpack(value, lengths) for name, value in result.items()},
        "loss_sum": output.sum.item(),
        "denominator": int(output.count),
        "loss": loss.item(),
        "metrics": {name.split("/")[-1]: value for name, value in output.metrics.reduce(rollout.group).items()},
    }


def _parts(runtime: Runtime, rollout: Rollout, batch: LossBatch) -> dict[str, Tensor]:
    parts = {}
    for plugin in runtime.binding.implementing("pre_loss_mask"):
        context = Context(0, 1, torch.Generator().manual_seed(0), dict(plugin.state))
        keep = plugin.call("pre_loss_mask", rollout=rollout, context=context).keep
        parts[f"keep.{plugin.name}"] = (keep & rollout.raw_mask).long()
    for name, weight in runtime.weights(batch).items():
        parts[f"weight.{name}"] = torch.where(batch.raw_mask, weight.weight, 0.0)
    if rollout.has("returns"):
        parts["returns"] = rollout.read("returns")
    return parts


def _replay_values(case: Mapping[str, Any], runtime: Runtime, dtype: torch.dtype) -> dict[str, Any]:
    rollout = rollout_of(case, dtype)
    values = _pack(case["sequences"], "new_values", dtype).requires_grad_()
    tokens = {
        **rollout.tokens,
        "loss_mask": rollout.raw_mask,
        "returns": _pack(case["sequences"], "returns", dtype),
        "old_values": rollout.values,
        "values": values,
    }
    output = runtime.value_loss(build(CriticBatch, rollout.sequence_ids, tokens, rollout.sequences))
    loss = output.sum / output.count.clamp(min=1)
    (gradient,) = torch.autograd.grad(loss, values)
    return {"loss": loss.item(), "grad_values": _unpack(gradient, rollout.lengths.tolist())}


def _pack(sequences: list[dict[str, Any]], key: str, dtype: torch.dtype) -> Tensor:
    return torch.tensor([value for each in sequences for value in each[key]], dtype=dtype)


def _unpack(value: Tensor, lengths: list[int]) -> list[list[float]]:
    return [part.tolist() for part in torch.split(value.detach(), lengths)]
