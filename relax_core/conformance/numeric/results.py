"""What single hooks promise beside their shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from relax_core.conformance.check import Check, Problem, checks_in, on_hooks

if TYPE_CHECKING:
    from relax_core.conformance.call import Call


@on_hooks("RLX871", "A weight is a constant to autograd", "detach what it is computed from", ("post_loss_weight",))
def detached(call: Call) -> Iterator[Problem]:
    batch = call.sample()
    leaves = {name: batch.tokens[name].clone().requires_grad_() for name in ("log_probs", "entropy")}
    weight = call.ask(batch.with_values(**leaves)).weight
    if weight.requires_grad:
        yield Problem("the weight carries a gradient", "weight.requires_grad = True", "weight.detach()")


@on_hooks("RLX872", "A weight is not negative", "clamp it to 0 and more", ("post_loss_weight",))
def not_negative(call: Call) -> Iterator[Problem]:
    for seed in call.seeds:
        weight = call.evaluate(call.sample(seed)).values["weight"]
        if (weight < 0).any():
            place = int(weight.argmin())
            yield Problem("a weight turns a loss around", f"weight[{place}] = {float(weight[place]):.9g}", "0 or more")
            return


@on_hooks(
    "RLX873",
    "A mask is true or false for each token, a group stays or goes as a whole",
    "return a comparison (bool), and for groups one that is equal within the group",
    ("pre_loss_mask", "keep_group"),
)
def truth(call: Call) -> Iterator[Problem]:
    import torch

    from relax_core.conformance.outcome import values_of

    batch = call.sample()
    result = call.ask(batch)
    for name, value in values_of(call.hook, result).items():
        if value.dtype != torch.bool:
            yield Problem("the mask holds numbers", f"{name} of type {value.dtype}", "torch.bool")
        elif call.hook == "keep_group":
            kept = torch.zeros(batch.size).index_add(0, batch.group_ids, value.float())[batch.group_ids]
            size = torch.zeros(batch.size).index_add(0, batch.group_ids, torch.ones(batch.size))[batch.group_ids]
            if ((kept > 0) & (kept < size)).any():
                place = int(((kept > 0) & (kept < size)).nonzero()[0])
                yield Problem(
                    "a group is torn apart", f"group of sequence {place}: {int(kept[place])} kept", "all, or none"
                )


@on_hooks(
    "RLX874",
    "An estimator with a critic gives returns",
    "return Advantage(advantages, returns=…): the critic learns them; without a critic leave them out",
    ("compute_advantage",),
)
def returns(call: Call) -> Iterator[Problem]:
    given = "returns" in call.evaluate(call.sample()).values
    needed = bool(call.declares("requires_critic", False))
    if given is not needed:
        told = f"requires_critic={needed}"
        yield Problem(f"{told}, and {'returns' if given else 'no returns'}", str(given), str(needed))


CHECKS: tuple[Check, ...] = checks_in(globals())
