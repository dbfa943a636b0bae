"""Examples: the rows of a file, of a task or of a function, with the errors that help where they are not as they should be."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax_core.errors import FOREIGN, LoadError, RelaxError, UsageError, nearest
from relax_core.references import load_callable, missing_extra

if TYPE_CHECKING:
    from relax_core.config import DataSection, PromptOrigin

Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Example:
    """One question: text or chat messages (`role` and `content`), its answer, and the row's other columns."""

    id: str
    prompt: str | Messages
    answer: Any
    metadata: dict[str, Any]


def load_examples(data: DataSection, base: Path, section: str = "data") -> list[Example]:
    """Every example of `data.path`, `data.task` or `data.source`; relative paths are as seen from `base`.

    `section` is the one of the run file that errors name. UsageError for a configuration that names no data, LoadError
    for data that cannot be used.
    """
    where, rows = open_rows(data, base, section)
    examples = [as_example(row, number, data, where) for number, row in enumerate(rows, start=1)]
    if not examples:
        raise LoadError("there is not a single example", who=where, fix="name data that has some")
    return examples


def open_rows(origin: PromptOrigin, base: Path, section: str) -> tuple[str, Iterable[Any]]:
    """The setting (with the file) that errors name, and its rows."""
    if len(named := origin.origins) != 1:
        what = f"exactly one of path, task and source says where prompts come from, not {' and '.join(named) or 'none'}"
        raise UsageError(what, who=section, fix=f"set one of {section}.path, {section}.task and {section}.source")
    (name,) = named
    who = f"{section}.{name}"
    where = f"{who} {getattr(origin, name)}"
    if origin.path is not None:
        return where, file_rows(origin.path, base, who)
    if origin.task is not None:
        return where, task_rows(origin.task, origin.task_args, who)
    return where, source_rows(str(origin.source), origin.source_args, base, who)


def file_rows(name: str, base: Path, who: str) -> Iterable[Any]:
    """The rows of a `.jsonl`, `.json` (one object a line) or `.parquet` file."""
    path = next((found for found in (base / name, Path.cwd() / name) if found.is_file()), None)
    if path is None:
        looked = " or ".join(dict.fromkeys(str((folder / name).parent) for folder in (base, Path.cwd())))
        raise UsageError(f"there is no file {Path(name).name} in {looked}", who=who, fix="correct the path")
    if path.suffix in (".jsonl", ".json"):
        return json_rows(path, who)
    if path.suffix == ".parquet":
        return parquet_rows(path, who)
    fix = "convert it to .jsonl (one JSON object a line), .json of that form, or .parquet"
    raise LoadError(f"the suffix of {path.name} is unknown", who=who, fix=fix)


def json_rows(path: Path, who: str) -> Iterator[Any]:
    """One row a line; empty lines are passed over."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise LoadError(f"{path.name} is not UTF-8 text: {error}", who=who, fix="write it as UTF-8") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield parse_line(line, f"{path}:{number}")


def parse_line(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        what = f"this line is not JSON: {error.msg} at column {error.colno}"
        raise LoadError(what, who=where, fix="write one JSON object a line") from None


def parquet_rows(path: Path, who: str) -> list[Any]:
    from pyarrow import ArrowException, parquet

    try:
        rows: list[Any] = parquet.read_table(path).to_pylist()
    except (ArrowException, OSError) as error:
        raise LoadError(f"{path.name} is no parquet file: {error}", who=who, fix="write it again") from error
    return rows


def task_rows(task: str, args: dict[str, Any], who: str) -> list[Example]:
    """The examples of a reasoning-gym task; the metadata carry what the task's own scorer needs."""
    try:
        from reasoning_gym import create_dataset
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise missing_extra("reasoning_gym", f"the task '{task}'", who=who) from error
    if task not in DATASETS:
        fix = nearest(task, list(DATASETS)) or "see the reasoning-gym gallery for their names"
        raise LoadError(f"reasoning-gym has no task '{task}'", who=who, fix=fix)
    try:
        entries = list(create_dataset(task, **args))
    except (TypeError, ValueError, AssertionError) as error:
        fix = f"correct the arguments; they are the fields of {DATASETS[task][1].__name__}"
        raise LoadError(f"'{task}' does not take these: {error}", who=f"{who}_args", fix=fix) from error
    shared = {"task": task, "task_args": args}
    return [
        Example(f"{task}-{number}", entry["question"], entry["answer"], {**shared, "entry": entry})
        for number, entry in enumerate(entries)
    ]


def source_rows(reference: str, args: dict[str, Any], base: Path, who: str) -> list[Any]:
    """What the callable returns, as a list; what it says itself of bad data passes as it is."""
    if Path(reference).suffix in (".jsonl", ".json", ".parquet"):
        section = who.rpartition(".")[0]
        raise LoadError(f"'{reference}' is a file of rows, not a function", who=who, fix=f"write it as {section}.path")
    source = load_callable(reference, who=who, base=base)
    try:
        return list(source(**args))
    except RelaxError:
        raise
    except FOREIGN as error:
        what = f"'{reference}' raised {type(error).__name__}: {error}"
        raise LoadError(what, who=who, fix=f"correct the function or {who}_args") from error


def as_example(row: Any, number: int, data: DataSection, where: str) -> Example:
    """Row `number` (from 1) as an example; its columns other than id, prompt and answer become the metadata."""
    if isinstance(row, Example):
        return row
    if not isinstance(row, dict):
        what = f"row {number} is a {type(row).__name__}, not an object with the key '{data.prompt_key}'"
        raise LoadError(what, who=where, fix="give each row as an object")
    needed = ["prompt_key"] if data.answer_key == "answer" else ["prompt_key", "answer_key"]
    for setting in needed:
        check_key(row, setting, getattr(data, setting), f"row {number}", where)
    prompt = row[data.prompt_key]
    if not (isinstance(prompt, str) or is_messages(prompt)):
        what = f"row {number}: '{data.prompt_key}' is neither text nor a list of messages"
        raise LoadError(what, who=where, fix='write text, or messages like {"role": "user", "content": "..."}')
    metadata = {key: row[key] for key in row if key not in ("id", data.prompt_key, data.answer_key)}
    return Example(str(row.get("id", number - 1)), prompt, row.get(data.answer_key), metadata)


def check_key(row: dict[str, Any], setting: str, key: str, which: str, where: str) -> None:
    if key not in row:
        keys = ", ".join(map(str, row)) or "nothing"
        fix = f"{nearest(key, list(map(str, row)))} Set data.{setting} to the right one".strip()
        raise LoadError(f"{which} has no key '{key}', only {keys}", who=where, fix=fix)


def is_messages(prompt: Any) -> bool:
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and all(
            isinstance(message, dict)
            and isinstance(message.get("role"), str)
            and isinstance(message.get("content"), str)
            for message in prompt
        )
    )
