"""Metrics: their names, their reductions, and that every rank reports the same ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from relax_core.conformance.check import Check, Problem, checks_in, on_hooks
from relax_core.conformance.numeric.basics import METRICS

if TYPE_CHECKING:
    from relax_core.conformance.call import Call

NAME = re.compile(r"[a-z][a-z0-9_]*(/[a-z][a-z0-9_]*)*")


@on_hooks("RLX861", "Metric names can be read everywhere", "lower case, digits and _, with / between parts", METRICS)
def names(call: Call) -> Iterator[Problem]:
    for name in call.evaluate(call.sample()).metrics:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            yield Problem("a metric has no proper name", repr(name), "pg_clipfrac, or rollout/mine/baseline_mean")


@on_hooks(
    "RLX862",
    "A metric says how it is reduced, and has one value for each token, each sequence, or in all",
    "return TokenMean(x), SequenceMean(x), Sum(x), Max(x) or Min(x)",
    METRICS,
)
def reductions(call: Call) -> Iterator[Problem]:
    from relax_core.conformance.outcome import malformed_metrics

    batch = call.sample()
    yield from malformed_metrics(call.evaluate(batch).metrics, batch)


@on_hooks(
    "RLX863",
    "The names of metrics do not depend on data",
    "report the metric always, with a mask where it means nothing: ranks that report different names cannot be reduced",
    METRICS,
)
def same_names(call: Call) -> Iterator[Problem]:
    from relax_core.conformance import pieces

    batch = call.sample()
    expected = set(call.evaluate(batch).metrics)
    others = {"nothing live": pieces.silenced(batch), "no sequence": pieces.micro_batches(batch, 0)[3]}
    others["another seed"] = call.sample(call.seeds[1])
    for state, other in others.items():
        try:
            found = set(call.evaluate(other).metrics)
        except Exception:
            continue
        if found != expected:
            yield Problem(f"with {state} it reports other metrics", str(sorted(found)), str(sorted(expected)))
            return


CHECKS: tuple[Check, ...] = checks_in(globals())
