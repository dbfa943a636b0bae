"""Topology rules on random runs."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from relax_core.config import RolloutSection, RunConfig, TopologySection, TrainerSection
from relax_core.conformance.check import Check, Problem, checks_in, numeric, on_hooks
from relax_core.conformance.numeric.basics import ROLLOUT
from relax_core.conformance.variants import Variant, a_run, refusals, roles
from relax_core.errors import FOREIGN, RelaxError
from relax_core.rules import Run
from relax_core.startup import topology_of, violations
from relax_core.topology import Violation

if TYPE_CHECKING:
    from relax_core.conformance.call import Call
    from relax_core.conformance.subject import Subject

CODE = re.compile(r"[A-Z]+[0-9]+")
RUNS = 40
SIZES = (1, 2, 3, 8)
GROUP_SIZE = "rollout.n_samples_per_prompt"


def has_rule(subject: Subject) -> bool:
    """Whether it brings a rule that can be called."""
    return any("validate_topology" in variant.bound.hooks for variant in subject.variants)


def random_runs(seed: int, algorithm: Any) -> Iterator[RunConfig]:
    """Runs of every kind that the configuration can say."""
    draw = random.Random(seed)
    for _ in range(RUNS):
        size = draw.choice(SIZES)
        yield a_run(
            algorithm=algorithm,
            rollout=RolloutSection(
                rollout_batch_size=draw.choice([1, 4]), n_samples_per_prompt=size, partial_rollout=draw.random() < 0.3
            ),
            trainer=TrainerSection(
                mode=draw.choice(["sync", "hybrid", "async"]),
                max_staleness=draw.choice([0, 1, 4]),
                num_steps_per_rollout=draw.choice([None, 1, 2]),
                use_rollout_log_probs=draw.random() < 0.5,
                use_dynamic_batch_size=draw.random() < 0.5,
            ),
            topology=TopologySection(context_parallel_size=draw.choice([1, 2]), data_parallel_size=draw.choice([1, 8])),
        )


def judged(subject: Subject, variant: Variant) -> Iterator[Any]:
    """What the rule gives on random runs."""
    for run in random_runs(subject.seed, variant.run.algorithm):
        topology = topology_of(run, variant.binding)
        yield from variant.bound.call("validate_topology", topology=topology, roles=roles(variant)) or ()


@numeric("RLX891", "A topology rule has an answer for every run", "handle the run that is named", applies=has_rule)
def total(subject: Subject) -> Iterator[Problem]:
    for variant in subject.variants:
        if "validate_topology" in variant.bound.hooks:
            try:
                list(judged(subject, variant))
            except FOREIGN as error:
                yield Problem("validate_topology raises on a run", subject.described(error), "violations, or nothing")
                return


@numeric(
    "RLX892",
    "A violation has a stable code, a setting that there is, and says what to write instead",
    'write Violation("MINE01", "rollout.n_samples_per_prompt", "what is wrong", "write …")',
    applies=has_rule,
)
def helpful(subject: Subject) -> Iterator[Problem]:
    seen = set()
    for variant in subject.variants:
        if "validate_topology" not in variant.bound.hooks:
            continue
        try:
            given = list(judged(subject, variant))
        except FOREIGN:
            return
        for each in given:
            problem = unhelpful(each, variant)
            if problem is not None and problem not in seen:
                seen.add(problem)
                yield problem


def unhelpful(violation: Any, variant: Variant) -> Problem | None:
    """What is missing in a violation."""
    if not isinstance(violation, Violation):
        return Problem("validate_topology gives no violation", type(violation).__name__, "Violation(…)")
    if not CODE.fullmatch(violation.code):
        return Problem("a violation has no stable code", repr(violation.code), "letters and a number, as MINE01")
    if not violation.problem.strip() or not violation.fix.strip():
        return Problem(f"{violation.code} does not help", repr(violation.message), "the problem, and what to write")
    found: Any = variant.run
    for part in violation.setting.split("."):
        if not hasattr(found, part):
            return Problem(f"{violation.code} names no setting", violation.setting, "the path of a field of a run file")
        found = getattr(found, part)
    return None


@numeric(
    "RLX893",
    "With its defaults the plugin accepts an ordinary run",
    "choose defaults that your own rule accepts, or make it a warning",
    applies=has_rule,
)
def accepts(subject: Subject) -> Iterator[Problem]:
    for violation in refusals(subject.variants[0]):
        yield Problem("the rule refuses the plugin's own defaults", getattr(violation, "message", ""), "no error")


@on_hooks(
    "RLX894",
    "A group size that passes start-up works",
    "declare min_group_size, or refuse the size in validate_topology",
    (*ROLLOUT, "rollout_metrics"),
)
def group_sizes(call: Call) -> Iterator[Problem]:
    from relax_core.conformance.differences import is_finite, not_finite

    for size in SIZES if is_finite(call) else ():
        if refused(call.variant, size):
            continue
        cause = f"n_samples_per_prompt: {size} passes start-up"
        try:
            values = call.evaluate(call.sample(group_size=size)).values
        except FOREIGN as error:
            yield Problem(f"{cause}, and it raises an exception", call.subject.described(error), "a result")
            return
        for name, value in values.items():
            yield from not_finite(name, value, f"{cause}, and a value is not finite")


def refused(variant: Variant, size: int) -> bool:
    """Whether the core's rules or the plugin's refuse groups of this size, or have no answer (RLX891)."""
    rollout = variant.run.rollout.model_copy(update={"n_samples_per_prompt": size})
    topology = topology_of(variant.run.model_copy(update={"rollout": rollout}), variant.binding)
    try:
        found = violations(Run(topology, variant.binding))
    except RelaxError:
        return True
    return any(each.setting == GROUP_SIZE and each.severity == "error" for each in found)


CHECKS: tuple[Check, ...] = checks_in(globals())
