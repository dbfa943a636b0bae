"""Whether a declaration is true, both ways: what is needed is declared, and what is declared is needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from relax_core.conformance.check import Check, Problem, attempt, checks_in, numeric, on_hooks, passes
from relax_core.conformance.numeric import invariance, objective
from relax_core.conformance.numeric.basics import METRICS, MICRO, implements
from relax_core.spec import how_to_get

if TYPE_CHECKING:
    from relax_core.conformance.call import Call
    from relax_core.conformance.subject import Subject


@numeric(
    "RLX851", "Only declared fields are read", "declare it: in another run the field is not there", applies=implements
)
def undeclared_reads(subject: Subject) -> Iterator[Problem]:
    from relax_core.conformance.reading import declared, reads

    seen: set[tuple[str, str]] = set()
    for hook in METRICS:
        for call in subject.implementations(hook):
            for name in sorted(reads(call) - declared(variant := call.variant, hook)):
                if (hook, name) not in seen:
                    seen.add((hook, name))
                    told = f"{call.label} reads '{name}', which is not declared"
                    yield Problem(told, name, ", ".join(sorted(declared(variant, hook))), how_to_get(name))


@numeric(
    "RLX852",
    "What is declared is read",
    "take the declaration out: it costs a forward pass, or refuses runs",
    "warning",
    applies=implements,
)
def unread(subject: Subject) -> Iterator[Problem]:
    from relax_core.conformance.reading import CONDITIONAL
    from relax_core.conformance.variants import needs

    needed, read = set(), set()
    for variant in subject.variants:
        found = {name for hook in METRICS for call in subject.under(variant, hook) for name in _reads(call)}
        read |= found | {CONDITIONAL.get(name, name) for name in found}
        if "teacher_candidate_log_probs" in found:
            read.add("requires_teacher")
        needed |= {name for name in CONDITIONAL.values() if needs(variant, name)}
        needed |= {field.name for field in variant.bound.spec.fields}
    for name in sorted(needed - read):
        yield Problem(f"'{name}' is declared, and nothing reads it", "never read", f"read, or not declared ({name})")


def _reads(call: Call) -> set[str]:
    from relax_core.conformance.reading import reads

    return reads(call)


def _claims(subject: Subject, of: Check, hooks: tuple[str, ...]) -> list[Call]:
    """The calls that a declaration excuses from a check."""
    exempt = of.exempt or (lambda call: False)
    return [call for hook in hooks for call in subject.calls(hook) if exempt(call)]


def _of_context_parallel(subject: Subject) -> bool:
    return bool(_claims(subject, invariance.context_parallel, MICRO))


@numeric(
    "RLX853",
    "supports_context_parallel=False is needed",
    "declare supports_context_parallel=True",
    "warning",
    applies=_of_context_parallel,
)
def needless_refusal(subject: Subject) -> Iterator[Problem]:
    calls = _claims(subject, invariance.context_parallel, MICRO)
    if all(passes(call, invariance.context_parallel) for call in calls):
        yield Problem("runs with context parallelism are refused, and it is right in them", "False", "True")


def _of_micro_batches(subject: Subject) -> bool:
    return bool(_claims(subject, invariance.micro_batches, ("policy_loss",)))


@numeric(
    "RLX854", 'scope="microbatch" is needed', 'declare "token" or "sequence"', "warning", applies=_of_micro_batches
)
def needless_microbatch(subject: Subject) -> Iterator[Problem]:
    calls = _claims(subject, invariance.micro_batches, ("policy_loss",))
    if all(passes(call, invariance.micro_batches) for call in calls):
        yield Problem("it does not depend on the micro-batch", 'scope="microbatch"', 'scope="token" or "sequence"')


def _of_surrogate(subject: Subject) -> bool:
    return bool(_claims(subject, objective.finite_differences, ("policy_loss",)))


@numeric("RLX855", "surrogate_gradient is needed", "take surrogate_gradient out", "warning", applies=_of_surrogate)
def needless_surrogate(subject: Subject) -> Iterator[Problem]:
    calls = _claims(subject, objective.finite_differences, ("policy_loss",))
    if all(passes(call, objective.finite_differences) for call in calls):
        yield Problem("its gradient is that of its value", "surrogate_gradient='…'", "surrogate_gradient=''")


def _of_objective(subject: Subject) -> bool:
    return bool(_claims(subject, objective.on_policy, ("policy_loss",)))


@numeric("RLX856", "policy_gradient=False is needed", "take policy_gradient out", "warning", applies=_of_objective)
def needless_objective(subject: Subject) -> Iterator[Problem]:
    checks = (objective.on_policy, objective.zero_advantage, objective.proportional)
    if all(passes(call, *checks) for call in _claims(subject, objective.on_policy, ("policy_loss",))):
        yield Problem("it is a policy gradient", "policy_gradient=False", "policy_gradient=True")


def of_one_token(call: Call) -> bool:
    """It declares that a token's loss is a matter of that token."""
    return str(call.declares("scope")) == "token"


@on_hooks(
    "RLX857",
    'scope="token": the loss of a token depends on that token alone',
    'declare scope="sequence"',
    ("policy_loss",),
    exempt=lambda call: not of_one_token(call),
)
def token_scope(call: Call) -> Iterator[Problem]:
    yield from influence(call)


def influence(call: Call) -> Iterator[Problem]:
    """How a token's loss moves with the log-probs of other tokens."""
    import torch

    from relax_core.conformance.differences import different

    for seed in call.seeds:
        batch = call.sample(seed)
        moved = torch.arange(len(batch.sequence_ids)) % 3 == 0
        log_probs = batch.read("log_probs")
        other = batch.with_values(log_probs=torch.where(moved & batch.live, log_probs - 0.2, log_probs))
        before, after = (call.evaluate(each).values["per_token"] for each in (batch, other))
        cause = "with other log-probs at other tokens, a token has another loss"
        yield from different("per_token", torch.where(moved, 0.0, after), torch.where(moved, 0.0, before), cause)


def _of_sequence(subject: Subject) -> bool:
    return any(call.declares("scope") == "sequence" for call in subject.calls("policy_loss"))


@numeric("RLX858", 'scope="sequence" is needed', 'declare scope="token"', "warning", applies=_of_sequence)
def needless_sequence(subject: Subject) -> Iterator[Problem]:
    calls = [call for call in subject.calls("policy_loss") if call.declares("scope") == "sequence"]
    if not any(list(attempt(influence, call)) for call in calls):
        yield Problem("a token's loss depends on that token alone", 'scope="sequence"', 'scope="token"')


CHECKS: tuple[Check, ...] = checks_in(globals())
