"""A hook is a function of what it gets."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from relax_core.conformance.check import Check, Problem, checks_in, numeric, on_hooks
from relax_core.conformance.numeric.basics import METRICS, MICRO, implements

if TYPE_CHECKING:
    from relax_core.conformance.call import Call
    from relax_core.conformance.subject import Subject


@numeric(
    "RLX841",
    "Equal batches give equal results",
    "draw from context.generator; keep nothing outside context.state",
    applies=implements,
)
def deterministic(subject: Subject) -> Iterator[Problem]:
    """Numbers that change by themselves can be compared with nothing: no other check of such a hook is made."""
    for hook in METRICS:
        for call in subject.implementations(hook):
            if not call.failure and not call.malformation and call.fickle:
                yield from (replace(each, cause=f"{call.label}: {each.cause}") for each in call.fickle[:1])
                break


@numeric("RLX842", "The global random state is left alone", "draw from context.generator", applies=implements)
def random_state(subject: Subject) -> Iterator[Problem]:
    for hook in METRICS:
        for call in subject.implementations(hook)[:1]:
            if call.failure:
                continue
            batch, before = call.sample(), _random_states()
            call.ask(batch)
            for name, state in _random_states().items():
                if state != before[name]:
                    yield Problem(f"{call.label}: it draws from the global random state", name, "context.generator")


def _random_states() -> dict[str, Any]:
    import numpy
    import torch

    return {
        "torch": torch.get_rng_state().tolist(),
        "random": random.getstate(),
        "numpy": str(numpy.random.get_state()),
    }


@on_hooks(
    "RLX843", "The batch is left as it was", "work on a copy: no in-place operations on what the batch holds", METRICS
)
def inputs(call: Call) -> Iterator[Problem]:
    import torch

    batch = call.sample()
    held = {**batch.tokens, **batch.sequences}
    before = {name: (value.clone(), value._version) for name, value in held.items()}
    call.ask(batch)
    for name, value in held.items():
        copy, version = before[name]
        if value._version != version or not torch.equal(value, copy):
            yield Problem("it writes into the batch", f"{name} was changed in place", "the batch as it was")


@on_hooks(
    "RLX846",
    "It traces: no .item(), no shape that depends on data",
    "use torch.where() instead of x[mask] and of if; keep numbers as tensors",
    MICRO,
)
def traces(call: Call) -> Iterator[Problem]:
    if problem := untraceable(call):
        yield Problem("it cannot be traced with FakeTensor", problem, "tensors whose shapes follow from their inputs'")


def untraceable(call: Call) -> str:
    """Why FakeTensor does not get through; empty where it does."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from relax_core.conformance.padding import mapped

    mode = FakeTensorMode()
    fake = mapped(call.sample(), mode.from_tensor)
    try:
        with mode:
            call.ask(fake)
    except Exception as error:
        return call.subject.described(error)
    return ""


@on_hooks(
    "RLX847",
    "It compiles into one graph",
    "keep to tensor arithmetic: no printing, no try, no library that works on numbers outside the graph",
    MICRO,
)
def compiles(call: Call) -> Iterator[Problem]:
    import torch

    from relax_core.conformance.differences import same_values
    from relax_core.conformance.outcome import values_of

    if untraceable(call):
        return
    torch.compiler.reset()
    function, batch = call.plain(), call.sample()
    try:
        compiled: Any = torch.compile(function, fullgraph=True, backend="eager")
        result = compiled(batch)
    except Exception as error:
        reason = " ".join(str(error).split("\n\n")[0].split())[:300]
        yield Problem(
            "torch.compile(fullgraph=True) does not take it", f"{type(error).__name__}: {reason}", "one graph"
        )
        return
    yield from same_values(
        values_of(call.hook, result), values_of(call.hook, function(batch)), "compiled, it gives another value"
    )


CHECKS: tuple[Check, ...] = checks_in(globals())
