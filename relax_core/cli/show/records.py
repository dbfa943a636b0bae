"""The records of `samples.jsonl`, those of runs without segments too, and which of them are shown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import AliasChoices, BaseModel, Field, ValidationError, model_validator

from relax_core.errors import UsageError, nearest
from relax_core.orchestration.record import METRICS, SAMPLES, records_of


class Segment(BaseModel):
    """What the policy wrote, what it was shown, or what it read from there on in place of all before.

    An entry a token in each list; `mask` is the final one.
    """

    kind: Literal["policy", "observation", "context"]
    tool: str | None = None
    tokens: list[str]
    mask: list[int]
    advantages: list[float] | None = None

    @model_validator(mode="after")
    def _one_entry_a_token(self) -> Self:
        lengths = {len(self.tokens), len(self.mask), *([] if self.advantages is None else [len(self.advantages)])}
        if len(lengths) > 1:
            raise ValueError("the lists of a segment are of different lengths")
        return self


class Transcript(BaseModel):
    """One response of a step. A run from before segments were recorded has none."""

    step: int
    id: str
    trajectory: str = Field("", validation_alias=AliasChoices("trajectory_id", "trajectory"))
    prompt: str
    response: str
    answer: Any = None
    reward: float
    finish_reason: str
    segments: list[Segment] = []


def read(run_dir: Path) -> list[Transcript]:
    """Every response that a run has recorded. Raises UsageError for what is no run, and for a run without any."""
    if not (run_dir / METRICS).is_file():
        raise UsageError(f"'{run_dir}' is not a run directory: it has no {METRICS}", who="RUN_DIR")
    path = run_dir / SAMPLES
    try:
        found = [Transcript.model_validate(record) for record in records_of(path)]
    except (OSError, ValidationError, ValueError) as error:
        raise UsageError(f"'{path}' cannot be read: {_said(error)}", who="RUN_DIR") from None
    if not found:
        fix = "wait for the first step, or train with output.samples_per_step: 1 or more"
        raise UsageError(f"'{run_dir}' has no responses", who="RUN_DIR", fix=fix)
    return found


def chosen(found: Sequence[Transcript], step: int | None, row: str | None, number: int | None) -> list[Transcript]:
    """Those of a step (the last where None), of a row where one is named, the first `number` of them."""
    wanted = found[-1].step if step is None else step
    here = [each for each in found if each.step == wanted]
    if not here:
        known = ranges(sorted({each.step for each in found}))
        raise UsageError(f"step {wanted} has no responses", who="--step", fix=f"steps that have some: {known}")
    mine = [each for each in here if row in (None, each.id)]
    if not mine:
        ids = list(dict.fromkeys(each.id for each in here))
        fix = nearest(str(row), ids) or f"rows that have one: {', '.join(ids)}"
        raise UsageError(f"step {wanted} has no response to row '{row}'", who="--id", fix=fix)
    return mine[:number]


def ranges(steps: Sequence[int]) -> str:
    """`1 to 4, 6`: increasing numbers, those in a row together."""
    ends = [0, *(i for i, (a, b) in enumerate(pairwise(steps), start=1) if b != a + 1), len(steps)]
    parts = [steps[begin:end] for begin, end in pairwise(ends)]
    return ", ".join(str(each[0]) if len(each) == 1 else f"{each[0]} to {each[-1]}" for each in parts)


def _said(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        return f"{where}: {first['msg']}" if where else str(first["msg"])
    return str(error).splitlines()[0]
