"""Waiting for actors: every wait ends, and says what it was for and who did not answer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from relax_core.errors import RelaxError, RunError, describe

GRACE = 10.0
"""Seconds in which an actor that died shows itself, once another has failed for want of it."""
RESUME = "go on from the last checkpoint with --resume"


class Lost(RunError):
    """An actor ended that nobody told to: what it did is to be done again."""


def gather(refs: Mapping[Any, str], what: str, seconds: float) -> list[Any]:
    """The values of `refs`, in order; the name beside each is who gives it.

    Raises what an actor raised, Lost for an actor that died, RunError for one that does not answer in `seconds`.
    """
    values: dict[Any, Any] = {}
    failure: RunError | None = None
    deadline = time.monotonic() + seconds
    while missing := [ref for ref in refs if ref not in values]:
        ready, _ = ray.wait(missing, num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
        if not ready and failure is None:
            raise RunError(f"{refs[missing[0]]} did not answer '{what}' in {seconds:g} s", who="ray", fix=RESUME)
        if not ready:
            break
        try:
            values[ready[0]] = value(ready[0], refs[ready[0]], what)
        except Lost:
            raise
        except RunError as error:
            if error.who != "ray":
                raise
            # Perhaps for want of another, which is then the one to blame.
            failure, values[ready[0]] = failure or error, None
            deadline = min(deadline, time.monotonic() + GRACE)
    if failure is not None:
        raise failure
    return [values[ref] for ref in refs]


def value(ref: Any, who: str, what: str) -> Any:
    """The value of a ref that is there; its failure as one of ours."""
    try:
        return ray.get(ref)
    except RayTaskError as error:
        if isinstance(error.cause, RelaxError):
            raise error.cause from None
        raise RunError(f"{who} failed in '{what}': {describe(error.cause)}", who="ray", fix=RESUME) from None
    except RayActorError:
        raise Lost(f"{who} died during '{what}'", who="ray", fix=RESUME) from None
    except RayError as error:
        raise Lost(f"{who} cannot be reached during '{what}': {type(error).__name__}", who="ray", fix=RESUME) from None


def each(generator: Any, who: str, what: str, seconds: float) -> Iterator[Any]:
    """The refs that a streaming call gives, as they come."""
    while True:
        ready, _ = ray.wait([generator], timeout=seconds, fetch_local=False)
        if not ready:
            raise RunError(f"{who} did not answer '{what}' in {seconds:g} s", who="ray", fix=RESUME)
        try:
            ref = next(generator)
        except StopIteration:
            return
        yield ref
