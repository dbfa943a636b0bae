"""Prompts: the rows of a file, a task or a function, tokenised once, and the batch of each step."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax_core.data.references import load_callable, missing_extra
from relax_core.errors import LoadError, UsageError, nearest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from relax_core.config import DataSection

Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Example:
    """One question: text or chat messages (`role` and `content`), its answer, and the row's other columns."""

    id: str
    prompt: str | Messages
    answer: Any
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """An example as the model reads it: `text` after the chat template, and its tokens."""

    example: Example
    token_ids: list[int]
    text: str


def load_examples(data: DataSection, base: Path) -> list[Example]:
    """Every example of `data.path`, `data.task` or `data.source`; relative paths are as seen from `base`.

    UsageError for a configuration that names no data, LoadError for data that cannot be used.
    """
    where, rows = open_rows(data, base)
    examples = [as_example(row, number, data, where) for number, row in enumerate(rows, start=1)]
    if not examples:
        raise LoadError("there is not a single example", who=where, fix="name data that has some")
    return examples


def open_rows(data: DataSection, base: Path) -> tuple[str, Iterable[Any]]:
    """The setting (with the file) that errors name, and its rows."""
    named = [name for name in ("path", "task", "source") if getattr(data, name) is not None]
    if len(named) != 1:
        what = f"exactly one of path, task and source says where prompts come from, not {' and '.join(named) or 'none'}"
        raise UsageError(what, who="data", fix="set one of data.path, data.task and data.source")
    if data.path is not None:
        return f"data.path {data.path}", file_rows(data.path, base)
    if data.task is not None:
        return f"data.task {data.task}", task_rows(data.task, data.task_args)
    return f"data.source {data.source}", source_rows(str(data.source), data.source_args, base)


def file_rows(name: str, base: Path) -> Iterable[Any]:
    """The rows of a `.jsonl`, `.json` (one object a line) or `.parquet` file."""
    path = next((found for found in (base / name, Path.cwd() / name) if found.is_file()), None)
    if path is None:
        looked = " or ".join(dict.fromkeys(str((folder / name).parent) for folder in (base, Path.cwd())))
        raise UsageError(f"there is no file {Path(name).name} in {looked}", who="data.path", fix="correct the path")
    if path.suffix in (".jsonl", ".json"):
        return json_rows(path)
    if path.suffix == ".parquet":
        return parquet_rows(path)
    fix = "convert it to .jsonl (one JSON object a line), .json of that form, or .parquet"
    raise LoadError(f"the suffix of {path.name} is unknown", who="data.path", fix=fix)


def json_rows(path: Path) -> Iterator[Any]:
    """One row a line; empty lines are passed over."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise LoadError(f"{path.name} is not UTF-8 text: {error}", who="data.path", fix="write it as UTF-8") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield parse_line(line, f"{path}:{number}")


def parse_line(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        what = f"this line is not JSON: {error.msg} at column {error.colno}"
        raise LoadError(what, who=where, fix="write one JSON object a line") from None


def parquet_rows(path: Path) -> list[Any]:
    from pyarrow import ArrowException, parquet

    try:
        rows: list[Any] = parquet.read_table(path).to_pylist()
    except (ArrowException, OSError) as error:
        raise LoadError(f"{path.name} is no parquet file: {error}", who="data.path", fix="write it again") from error
    return rows


def task_rows(task: str, args: dict[str, Any]) -> list[Example]:
    """The examples of a reasoning-gym task; the metadata carry what the task's own scorer needs."""
    try:
        from reasoning_gym import create_dataset
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise missing_extra("reasoning_gym", f"the task '{task}'", who="data.task") from error
    if task not in DATASETS:
        fix = nearest(task, list(DATASETS)) or "see the reasoning-gym gallery for their names"
        raise LoadError(f"reasoning-gym has no task '{task}'", who="data.task", fix=fix)
    try:
        entries = list(create_dataset(task, **args))
    except (TypeError, ValueError, AssertionError) as error:
        fix = f"correct the arguments; they are the fields of {DATASETS[task][1].__name__}"
        raise LoadError(f"'{task}' does not take these: {error}", who="data.task_args", fix=fix) from error
    shared = {"task": task, "task_args": args}
    return [
        Example(f"{task}-{number}", entry["question"], entry["answer"], {**shared, "entry": entry})
        for number, entry in enumerate(entries)
    ]


def source_rows(reference: str, args: dict[str, Any], base: Path) -> list[Any]:
    """What the callable returns, as a list."""
    source = load_callable(reference, who="data.source", base=base)
    try:
        return list(source(**args))
    except Exception as error:
        what = f"'{reference}' raised {type(error).__name__}: {error}"
        fix = "correct the function or data.source_args"
        raise LoadError(what, who="data.source", fix=fix) from error


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


class PromptSource:
    """The tokenised prompts of a run and the batch of each step; nothing in it changes as steps pass.

    `max_tokens` (beside `data.max_prompt_tokens`) bounds a prompt's length in tokens; LoadError for a longer one.
    """

    def __init__(
        self,
        examples: list[Example],
        tokenizer: PreTrainedTokenizerBase,
        data: DataSection,
        seed: int,
        max_tokens: int | None,
    ) -> None:
        self._seed = seed
        self._shuffle = data.shuffle
        self.prompts = [tokenize(example, tokenizer, data) for example in examples]
        limits = [limit for limit in (max_tokens, data.max_prompt_tokens) if limit is not None]
        if limits:
            check_lengths(self.prompts, min(limits))

    def batch(self, step: int, size: int) -> list[Prompt]:
        """The `size` prompts of `step` (from 0): the next ones of the epoch's order, going on into the next epoch."""
        return self.take(step * size, size)

    def take(self, start: int, size: int) -> list[Prompt]:
        """`size` prompts from place `start` of the endless sequence of epochs."""
        places = (divmod(position, len(self.prompts)) for position in range(start, start + size))
        return [self.prompts[self._order(epoch)[index]] for epoch, index in places]

    def _order(self, epoch: int) -> tuple[int, ...]:
        count = len(self.prompts)
        return permutation(self._seed, epoch, count) if self._shuffle else tuple(range(count))


@lru_cache(maxsize=4)
def permutation(seed: int, epoch: int, count: int) -> tuple[int, ...]:
    """The order of `count` examples in `epoch`."""
    order = list(range(count))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return tuple(order)


def tokenize(example: Example, tokenizer: PreTrainedTokenizerBase, data: DataSection) -> Prompt:
    """The example's text, through the chat template where that is used, and its tokens."""
    templated = uses_template(example, tokenizer, data)
    text = render(example, tokenizer, data.system_prompt) if templated else str(example.prompt)
    # A template writes the special tokens itself.
    token_ids: list[int] = tokenizer(text, add_special_tokens=not templated)["input_ids"]
    if not token_ids:
        raise LoadError("the prompt has no tokens", who=f"example {example.id}", fix="take it out of the data")
    return Prompt(example, token_ids, text)


def uses_template(example: Example, tokenizer: PreTrainedTokenizerBase, data: DataSection) -> bool:
    """Whether the chat template is used. LoadError where one is needed that is off or missing."""
    available, messages = bool(tokenizer.chat_template), not isinstance(example.prompt, str)
    needs = messages or bool(data.system_prompt) or bool(data.chat_template)
    who = f"example {example.id}"
    if needs and data.chat_template is False:
        reason = "messages" if messages else "a system prompt"
        fix = "leave data.chat_template out, or give prompts as text and no data.system_prompt"
        raise LoadError(f"{reason} cannot be written without the chat template", who=who, fix=fix)
    if needs and not available:
        text = "give prompts as text, without data.chat_template and data.system_prompt"
        fix = f"use a model whose tokenizer has one, or {text}"
        raise LoadError("the tokenizer has no chat template, which this prompt needs", who=who, fix=fix)
    return available and data.chat_template is not False


def render(example: Example, tokenizer: PreTrainedTokenizerBase, system_prompt: str | None) -> str:
    """The example through the chat template. A system message of its own stands before `system_prompt`."""
    prompt = example.prompt
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    if system_prompt and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system_prompt})
    try:
        return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
    except Exception as error:
        what = f"the chat template refuses its messages: {error}"
        fix = "correct the messages or data.system_prompt"
        raise LoadError(what, who=f"example {example.id}", fix=fix) from error


def check_lengths(prompts: list[Prompt], limit: int) -> None:
    long = [prompt for prompt in prompts if len(prompt.token_ids) > limit]
    if long:
        others = f" ({len(long) - 1} more {'is' if len(long) == 2 else 'are'} too long)" if len(long) > 1 else ""
        what = f"the prompt has {len(long[0].token_ids)} tokens, more than the limit of {limit}{others}"
        fix = "raise data.max_prompt_tokens, lower rollout.max_new_tokens, or take it out of the data"
        raise LoadError(what, who=f"example {long[0].example.id}", fix=fix)
