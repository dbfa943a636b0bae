"""What stands under the mask has no meaning; what is live may be extreme."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from relax_core.conformance.check import Check, Problem, checks_in, on_hooks
from relax_core.conformance.numeric.basics import ALL, MICRO

if TYPE_CHECKING:
    from relax_core.conformance.call import Call


@on_hooks(
    "RLX821",
    "Masked tokens never reach a value",
    "use the primitives, which leave masked tokens out, or torch.where(batch.live, x, 0); never x * mask",
    ALL,
)
def masked_values(call: Call) -> Iterator[Problem]:
    from relax_core.conformance.differences import same_values
    from relax_core.conformance.padding import poisoned

    for seed in call.seeds:
        batch = call.sample(seed)
        found = call.evaluate(poisoned(batch, seed)).values
        yield from same_values(found, call.evaluate(batch).values, "with other values at masked tokens it changes")


@on_hooks(
    "RLX822",
    "Masked tokens never reach a gradient",
    "put torch.where(batch.live, x, 0) before the exponential, logarithm, root or division, not after it: "
    "where() gives 0 · inf = NaN backwards",
    MICRO,
)
def masked_gradients(call: Call) -> Iterator[Problem]:
    from relax_core.conformance.differences import different, same_values
    from relax_core.conformance.padding import poisoned

    for seed in call.seeds:
        batch = call.sample(seed)
        found, expected = call.evaluate(poisoned(batch, seed)), call.evaluate(batch)
        if list(same_values(found.values, expected.values, "")):
            return
        for name, gradient in expected.gradients.items():
            cause = "with other values at masked tokens the gradient changes"
            yield from different(f"gradient of {name}", found.gradients[name], gradient, cause)


@on_hooks(
    "RLX823",
    "A batch with nothing live, or nothing at all, gives finite results and zero gradients",
    "keep counts away from 0 with clamp(min=1); the primitives do",
    ALL,
)
def nothing_live(call: Call) -> Iterator[Problem]:
    from relax_core.conformance import pieces
    from relax_core.conformance.differences import not_finite, not_zero

    batch = call.sample()
    masked = pieces.silenced(batch)
    for state, each in (("nothing live", masked), ("no sequence", pieces.micro_batches(batch, 0)[3])):
        outcome = call.evaluate(each)
        for name, value in outcome.values.items():
            yield from not_finite(name, value, f"with {state} a value is not finite")
        for name, value in outcome.gradients.items():
            yield from not_zero(f"gradient of {name}", value, f"with {state} a gradient is not 0")


@on_hooks(
    "RLX824",
    "Log ratios of ±200 give finite values and gradients in float32",
    "use batch.ratio() and batch.log_ratio(), or clamp a log ratio to ±MAX_LOG_RATIO before the exponential",
    ALL,
)
def extreme_ratios(call: Call) -> Iterator[Problem]:
    import torch

    from relax_core.conformance.differences import is_finite, not_finite
    from relax_core.conformance.padding import converted

    batch = call.sample()
    if not is_finite(call):
        return
    shift = torch.tensor([200.0, -200.0, 0.0])[torch.arange(len(batch.sequence_ids)) % 3]
    for moved in (name for name in batch.tokens if name.endswith("log_probs") and batch.tokens[name].dim() == 1):
        far = batch.with_values(**{moved: torch.where(batch.raw_mask, batch.tokens[moved] + shift, 0.0)})
        outcome = call.evaluate(converted(far, torch.float32))
        for name, value in outcome.values.items():
            yield from not_finite(name, value, f"with {moved} moved by ±200 a value is not finite")
        for name, value in outcome.gradients.items():
            yield from not_finite(f"gradient of {name}", value, f"with {moved} moved by ±200 a gradient is not finite")


CHECKS: tuple[Check, ...] = checks_in(globals())
