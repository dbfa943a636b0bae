"""The format of a case, as `tests/vectors` has it: one algorithm on given numbers, in one JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from relax_core.errors import UsageError, nearest

Expected = float | list[float] | list[list[float]] | dict[str, float]
FORMAT = "docs/commands.md describes the format"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class CaseSequence(BaseModel):
    """One sequence: its group and reward, and lists with one value a token. Other keys are fields that plugins declare."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float | list[float]] = Field(init=False)

    group: int | str
    reward: float
    mask: list[bool]
    old_logp: list[float] | None = None
    logp: list[float] | None = None
    rollout_logp: list[float] | None = None
    ref_logp: list[float] | None = None
    teacher_logp: list[float] | None = None
    values: list[float] | None = None
    entropy: list[float] | None = None
    returns: list[float] | None = None
    new_values: list[float] | None = None

    @model_validator(mode="after")
    def _one_value_a_token(self) -> Self:
        """Every list is as long as the mask."""
        lists = {name: value for name, value in self.given().items() if isinstance(value, list)}
        wrong = [f"{name} has {len(value)}" for name, value in lists.items() if len(value) != len(self.mask)]
        if wrong:
            raise ValueError(f"{', '.join(wrong)} values, mask has {len(self.mask)}")
        return self

    def given(self) -> dict[str, Any]:
        """What the file has."""
        return self.model_dump(exclude_none=True)


class CaseConfig(_Strict):
    """The names of the run configuration; a case has no other section."""

    algorithm: dict[str, Any] = {}


class Case(_Strict):
    """The whole case is one rollout, one mini-batch, one micro-batch."""

    name: str
    algorithm: str
    config: CaseConfig = CaseConfig()
    sequences: list[CaseSequence] = Field(min_length=1)
    expected: dict[str, Expected] = {}

    @model_validator(mode="after")
    def _same_fields(self) -> Self:
        """What one sequence has, all have; and the policy's log-probs are there, unless it is the critic that learns."""
        first = set(self.sequences[0].given())
        for index, each in enumerate(self.sequences):
            if uneven := first ^ set(each.given()):
                raise ValueError(f"sequences[{index}] and sequences[0] do not both have {', '.join(sorted(uneven))}")
        needed = {"returns", "values"} if "new_values" in first else {"logp"}
        if missing := needed - first:
            raise ValueError(f"the sequences have no {', '.join(sorted(missing))}")
        return self

    def plain(self) -> dict[str, Any]:
        """The case as `replay` takes it."""
        sequences = [each.given() for each in self.sequences]
        return {**self.model_dump(exclude={"sequences"}), "sequences": sequences}


def read_cases(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The cases in these files, in their order. Raises one `UsageError` with everything that is wrong in all of them."""
    cases, wrong = [], []
    for path in paths:
        try:
            cases.append(_read(path))
        except UsageError as error:
            wrong.append(error.message)
    if wrong:
        raise UsageError("\n".join(wrong))
    return cases


def _read(path: Path) -> dict[str, Any]:
    try:
        return Case.model_validate(json.loads(path.read_text(encoding="utf-8"))).plain()
    except FileNotFoundError:
        raise UsageError("no such file", who=str(path), fix="name an existing case") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be read: {error}", who=str(path)) from None
    except json.JSONDecodeError as error:
        raise UsageError(f"not JSON: {error.msg} (column {error.colno})", who=f"{path}:{error.lineno}") from None
    except RecursionError:
        raise UsageError("not a case: nested too deeply", who=str(path), fix=FORMAT) from None
    except ValidationError as error:
        raise UsageError("\n".join(f"{path}: {line}" for line in dict.fromkeys(_explain(error)))) from None


def _explain(error: ValidationError) -> Iterator[str]:
    for each in error.errors():
        where, message = _where(each["loc"]), each["msg"].removeprefix("Value error, ").removeprefix("Input ")
        if each["loc"][:1] == ("expected",) and len(each["loc"]) > 1:
            yield f"{where}: should be a number, a list of numbers a sequence, or numbers by name"
        elif each["type"] == "extra_forbidden":
            known = list((CaseConfig if len(each["loc"]) > 1 else Case).model_fields)
            yield f"{where}: unknown key. Fix: {nearest(str(each['loc'][-1]), known) or 'known: ' + ', '.join(known)}"
        elif each["type"] == "missing":
            yield f"{where}: missing. Fix: {FORMAT}"
        elif each["type"] == "model_type" and not each["loc"]:
            yield f"not a case: not a mapping. Fix: {FORMAT}"
        else:
            yield f"{where}{': ' if where else ''}{message}"


def _where(location: tuple[int | str, ...]) -> str:
    """`sequences[3].logp[2]`; in `expected`, without the kinds of value that were tried."""
    shown = location[:2] if location[:1] == ("expected",) else location
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in shown).removeprefix(".")
