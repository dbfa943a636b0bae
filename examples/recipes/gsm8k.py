r"""GSM8K (arXiv:2110.14168), word problems of grade school, with the final answer asked for in `\boxed{}`.

hf download openai/gsm8k --repo-type dataset --local-dir ~/data/gsm8k
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from relax_core.data.examples import file_rows
from relax_core.errors import LoadError

WHO = "examples/recipes/gsm8k.py"
INSTRUCTION = r"Reason step by step, and put the final answer in \boxed{}."
SILENCE = " /no_think"
"""Qwen3's own switch: it answers without a line of thought before."""
MARK = "####"
NAMED = 5
PUBLISHED = "give a file of GSM8K as it is published"


def examples(path: str, cache: str = "~/.cache/relax/gsm8k", think: bool = False) -> list[dict[str, Any]]:
    """The problems of a published file: the `.parquet` of openai/gsm8k, or the original `.jsonl`.

    They are normalised once, into a file of the directory `cache` whose name holds a digest of what made it.
    LoadError for a file that is missing or is none of GSM8K's.
    """
    source = Path(path).expanduser()
    if not source.is_file():
        fix = "hf download openai/gsm8k --repo-type dataset --local-dir ~/data/gsm8k, or correct the path"
        raise LoadError(f"there is no file {source}", who=WHO, fix=fix)
    kept = Path(cache).expanduser() / f"{source.stem}-{digest(source)}.jsonl"
    if not kept.is_file():
        publish(normalised(source), kept)
    rows = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
    return [{**row, "prompt": row["prompt"] + ("" if think else SILENCE)} for row in rows]


def digest(source: Path) -> str:
    """Of the file and of this one, so that what an older one made is not taken for its work."""
    return sha256(Path(__file__).read_bytes() + source.read_bytes()).hexdigest()[:16]


def normalised(source: Path) -> list[dict[str, str]]:
    """Every row as a prompt and its answer. LoadError, naming the rows, where some are not like those of GSM8K."""
    rows = list(file_rows(str(source.absolute()), Path(), WHO))
    refuse([n for n, row in enumerate(rows, 1) if not has_columns(row)], "no text in question and answer", source)
    answers = [final(row["answer"]) for row in rows]
    refuse([n for n, answer in enumerate(answers, 1) if not answer], f"no final answer after '{MARK}'", source)
    return [
        {"id": f"{source.stem}-{number}", "prompt": f"{row['question'].strip()}\n{INSTRUCTION}", "answer": answer}
        for number, (row, answer) in enumerate(zip(rows, answers, strict=True), 1)
    ]


def has_columns(row: Any) -> bool:
    return isinstance(row, dict) and all(isinstance(row.get(name), str) for name in ("question", "answer"))


def final(answer: str) -> str:
    """`So 2 * 600 = 1,200\\n#### 1,200` -> `1200`; empty where nothing stands after the mark, or no mark."""
    return answer.rpartition(MARK)[2].strip().replace(",", "") if MARK in answer else ""


def refuse(numbers: Sequence[int], problem: str, source: Path) -> None:
    if numbers:
        more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
        which = f"row{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:NAMED]))}{more}"
        raise LoadError(f"{source}: {problem} of {which}", who=WHO, fix=PUBLISHED)


def publish(rows: list[dict[str, str]], kept: Path) -> None:
    """Write one row a line, and move the whole file into place; LoadError for a cache that cannot be written."""
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".normalising-") as temporary:
            unfinished = Path(temporary) / kept.name
            unfinished.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
            unfinished.replace(kept)
    except OSError as error:
        fix = "give another directory as cache"
        raise LoadError(f"'{kept.parent}' cannot be written: {error.strerror}", who=WHO, fix=fix) from None
