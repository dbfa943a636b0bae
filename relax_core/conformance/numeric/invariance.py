"""A result belongs to the data, not to how a cluster cuts, orders or packs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from relax_core.conformance.check import Check, Problem, checks_in, on_hooks
from relax_core.conformance.numeric.basics import METRICS, MICRO, ROLLOUT

if TYPE_CHECKING:
    from relax_core.batch import Batch
    from relax_core.conformance.call import Call
    from relax_core.conformance.pieces import Seen

ANY = (*MICRO, *ROLLOUT)


def over_micro_batch(call: Call) -> bool:
    """It declares that it depends on what is in a micro-batch."""
    return call.hook == "policy_loss" and call.declares("scope") == "microbatch"


def without_context_parallel(call: Call) -> bool:
    """It declares that it needs whole sequences."""
    return not call.declares("supports_context_parallel", True)


def unchanged(call: Call, see: Callable[[Batch, int], Sequence[Seen]], cause: str) -> Iterator[Problem]:
    """How the batch seen in pieces, and put together again, differs from the batch seen whole."""
    from relax_core.conformance.differences import same
    from relax_core.conformance.pieces import assembled

    for seed in call.seeds:
        batch = call.sample(seed)
        yield from same(assembled(see(batch, seed), batch), call.evaluate(batch), cause)


@on_hooks(
    "RLX811",
    "The result does not depend on how micro-batches are cut",
    "take means over sequences with sequence_mean(); what needs the batch belongs in a rollout hook; "
    'or declare scope="microbatch"',
    MICRO,
    exempt=over_micro_batch,
)
def micro_batches(call: Call) -> Iterator[Problem]:
    from relax_core.conformance import pieces

    def see(batch: Batch, seed: int) -> Sequence[Seen]:
        return pieces.alone(call, pieces.micro_batches(batch, seed))

    yield from unchanged(call, see, "cut into micro-batches, a token has another value or gradient")


@on_hooks(
    "RLX812",
    "The result does not depend on how the tokens of a sequence are spread over context-parallel ranks",
    "cross from tokens to sequences with sequence_sum() or sequence_mean() alone; or declare "
    "supports_context_parallel=False",
    MICRO,
    exempt=without_context_parallel,
)
def context_parallel(call: Call) -> Iterator[Problem]:
    from relax_core.conformance import pieces

    def see(batch: Batch, seed: int) -> Sequence[Seen]:
        return pieces.together(call, pieces.parts(batch, seed))

    yield from unchanged(call, see, "on two context-parallel ranks, a token has another value or gradient")


@on_hooks(
    "RLX813",
    "The result does not depend on how groups are spread over data-parallel ranks",
    "take statistics of the whole batch with batch_mean(), token_mean() and the like, which know the other ranks",
    ROLLOUT,
)
def data_parallel(call: Call) -> Iterator[Problem]:
    from relax_core.conformance import pieces

    def see(batch: Batch, seed: int) -> Sequence[Seen]:
        return pieces.together(call, pieces.shards(batch))

    yield from unchanged(call, see, "on three data-parallel ranks, one of them empty, the result is another")


@on_hooks(
    "RLX814",
    "The result does not depend on the order of sequences, within a group or among interleaved groups",
    "use group_mean(), group_std() and group_sum(), never positions or reshape(groups, size)",
    ANY,
)
def order(call: Call) -> Iterator[Problem]:
    import torch

    from relax_core.conformance import pieces
    from relax_core.packing import select_sequences

    def see(batch: Batch, seed: int) -> Sequence[Seen]:
        turned = torch.randperm(batch.size, generator=torch.Generator().manual_seed(seed))
        return pieces.alone(call, [select_sequences(batch, turned)])

    yield from unchanged(call, see, "with the sequences in another order, the result is another")


@on_hooks(
    "RLX815",
    "Masked tokens between the live ones change nothing",
    "count live tokens, as sequence_sum(mask) does, instead of positions",
    ANY,
)
def packing(call: Call) -> Iterator[Problem]:
    from relax_core.conformance.differences import same
    from relax_core.conformance.padding import padded, without_padding

    for seed in call.seeds:
        batch = call.sample(seed)
        larger = padded(batch, seed)
        found = without_padding(call.evaluate(larger), larger)
        yield from same(found, call.evaluate(batch), "with masked tokens packed between the others, the result changes")


@on_hooks(
    "RLX816",
    "A metric does not depend on how the batch is cut",
    "return the value of each token or sequence with its reduction, not a number computed from the micro-batch",
    METRICS,
    exempt=over_micro_batch,
)
def metrics(call: Call) -> Iterator[Problem]:
    from relax_core.conformance import pieces
    from relax_core.conformance.call import BATCHES
    from relax_core.conformance.outcome import malformed_metrics
    from relax_core.groups import Solo

    batch = call.sample()
    if any(malformed_metrics(call.evaluate(batch).metrics, batch)):
        return
    in_pieces = pieces.micro_batches(batch, 0) if call.hook in BATCHES else pieces.shards(batch)
    seen = pieces.alone(call, in_pieces) if call.hook in BATCHES else pieces.together(call, in_pieces)
    found = pieces.metrics(seen, Solo())
    expected = pieces.metrics(pieces.alone(call, [batch]), Solo())
    for name, value in expected.items():
        given = found.get(name)
        if given is None or abs(given - value) > 1e-9 * (1 + abs(value)):
            yield Problem("cut into pieces, a metric has another value", f"{name} = {given}", f"{value:.9g}")


CHECKS: tuple[Check, ...] = checks_in(globals())
