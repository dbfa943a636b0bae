"""The example of every hook spec is a plugin: it registers, it runs, and it gives what the hook promises."""

from __future__ import annotations

import inspect
import textwrap
from types import ModuleType, SimpleNamespace

import pytest
import torch
from rollouts import random_rollout
from torch import Tensor

import relax_core
from relax_core import hookspecs, results
from relax_core.batch import CriticBatch, build
from relax_core.context import Context
from relax_core.discovery import HOOKS, plugin_manager
from relax_core.packing import loss_batch
from relax_core.spec import AlgorithmSpec
from relax_core.topology import Violation

CONFIG = SimpleNamespace(penalty=0.5, max_age=1, coef=0.1, upper_bound=2.0, clip_ratio=0.2, entropy_coef=0.01)


def example(hook):
    """The code at the end of the hook's docstring."""
    lines = inspect.getdoc(getattr(hookspecs, hook)).splitlines()
    first = next(index for index, line in enumerate(lines) if line.strip() == "@hookimpl")
    return textwrap.dedent("\n".join(lines[first:]))


def plugin_of(hook):
    """The example as an author would have it in a file: with the public names."""
    module = ModuleType(f"example_of_{hook}")
    vars(module).update({name: getattr(relax_core, name) for name in relax_core.__all__}, torch=torch)
    exec(example(hook), vars(module))
    return module


def arguments(hook):
    """A small batch of the kind that the hook gets."""
    rollout, forward = random_rollout()
    rollout = rollout.with_values(
        staleness=torch.arange(len(rollout.sequence_ids)) % 3,
        loss_mask=rollout.raw_mask,
        advantages=rollout.old_log_probs + 1,
        returns=rollout.old_log_probs,
        old_values=rollout.values,
        finish_reasons=torch.arange(rollout.size) % 2,
    )
    batch = loss_batch(rollout, **forward)
    if hook == "value_loss":
        batch = build(CriticBatch, rollout.sequence_ids, rollout.tokens, rollout.sequences)
    named = {
        "rollout": rollout,
        "batch": batch,
        "advantages": rollout.read("advantages"),
        "config": CONFIG,
        "context": Context(0, 1, torch.Generator(), {}),
        "topology": SimpleNamespace(n_samples_per_prompt=3),
        "roles": frozenset({"estimator"}),
    }
    return {name: named[name] for name in inspect.signature(getattr(hookspecs, hook)).parameters}


def call(hook):
    manager = plugin_manager()
    manager.register(plugin_of(hook))
    (result,) = getattr(manager.hook, hook)(**arguments(hook))
    return result


@pytest.mark.parametrize("hook", HOOKS)
def test_the_example_registers_as_an_implementation_of_its_hook(hook):
    manager, plugin = plugin_manager(), plugin_of(hook)
    manager.register(plugin)
    manager.check_pending()
    assert [caller.name for caller in manager.get_hookcallers(plugin)] == [hook]


def test_every_hook_of_the_contract_is_called_below():
    assert sorted(HOOKS) == sorted([*PER_TOKEN, *PER_SEQUENCE, "algorithm", "validate_topology", "rollout_metrics"])


PER_TOKEN = {
    "compute_advantage": (results.Advantage, "advantages"),
    "adjust_advantage": (Tensor, None),
    "pre_loss_mask": (results.Mask, "keep"),
    "post_loss_weight": (results.Weight, "weight"),
    "policy_loss": (results.PolicyLoss, "per_token"),
    "loss_term": (results.LossTerm, "per_token"),
    "value_loss": (results.ValueLoss, "per_token"),
}
PER_SEQUENCE = {"shape_rewards": torch.float64, "keep_group": torch.bool}


@pytest.mark.parametrize("hook", PER_TOKEN)
def test_the_example_gives_a_value_for_every_token(hook):
    kind, attribute = PER_TOKEN[hook]
    result = call(hook)
    assert isinstance(result, kind)
    value = getattr(result, attribute) if attribute else result
    rollout = random_rollout()[0]
    assert value.shape == rollout.sequence_ids.shape
    assert value.isfinite().all()
    assert value.dtype == (torch.bool if hook == "pre_loss_mask" else torch.float64)
    assert len(value[rollout.raw_mask].unique()) > 1


@pytest.mark.parametrize("hook", PER_SEQUENCE)
def test_the_example_gives_a_value_for_every_sequence(hook):
    result = call(hook)
    assert result.shape == (random_rollout()[0].size,)
    assert result.dtype == PER_SEQUENCE[hook]
    assert len(result.unique()) > 1


def test_the_example_of_a_declaration_declares():
    spec = call("algorithm")
    assert isinstance(spec, AlgorithmSpec)
    assert spec.estimator.min_group_size == 2


def test_the_example_of_a_topology_rule_objects():
    (violation,) = call("validate_topology")
    assert isinstance(violation, Violation)
    assert (
        violation.message == "PAIRS01 rollout.n_samples_per_prompt: pairs need an even group. Fix: write an even number"
    )


def test_the_example_of_a_diagnostic_gives_metrics():
    assert {name: type(metric) for name, metric in call("rollout_metrics").items()} == {"reward_max": results.Max}


@pytest.mark.parametrize("hook", HOOKS)
def test_the_specification_says_when_it_is_called_and_what_it_gives(hook):
    text = inspect.getdoc(getattr(hookspecs, hook))
    assert any(word in text for word in ("Every active plugin", "every active plugin", "The chosen", "Called once"))
    assert "Give" in text or hook in ("algorithm", "validate_topology")
