"""Which fields of a batch a hook reads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import Tensor

from relax_core.batch import Batch
from relax_core.conformance.call import BATCHES, Call
from relax_core.conformance.variants import Variant, needs
from relax_core.errors import FOREIGN
from relax_core.spec import BATCH_FIELDS

CONDITIONAL = {name: capability for name, capability in BATCH_FIELDS.items() if capability}
"""Fields that a run has only where something declares that it needs them."""
ALWAYS = frozenset(BATCH_FIELDS) - set(CONDITIONAL)


def declared(variant: Variant, hook: str) -> set[str]:
    """The fields that a hook may read under a configuration."""
    asked = {name for name, capability in CONDITIONAL.items() if needs(variant, capability)}
    given = {"old_log_probs"} if hook in BATCHES else set()
    return asked | given | ALWAYS | {field.name for field in variant.bound.spec.fields}


def reads(call: Call) -> set[str]:
    """The fields that a hook asks for, those that are not there included. `has` knows only what is declared."""
    log: set[str] = set()
    allowed = declared(call.variant, call.hook)
    if call.hook == "value_loss":
        allowed |= {"values"}
    try:
        call.ask(_recording(call.sample(), allowed, log))
    except FOREIGN:
        return log
    return log - ({"values"} if call.hook == "value_loss" else set())


def _recording(batch: Batch, allowed: Collection[str], log: set[str]) -> Batch:
    kind = type(batch)

    def read(self: Any, name: str) -> Tensor:
        log.add(name)
        return kind.read(self, name)

    def has(self: Any, name: str) -> bool:
        return name in allowed and kind.has(self, name)

    recorder: Any = type(f"Recorded{kind.__name__}", (kind,), {"read": read, "has": has})
    found: Batch = recorder(batch.sequence_ids, batch.tokens, batch.sequences, batch.group)
    return found
