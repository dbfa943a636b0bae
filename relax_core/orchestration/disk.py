"""What a run writes, on disks that are full, read-only or gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relax_core.errors import RunError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises RunError for `path` where the disk does not take what is written inside."""
    try:
        yield
    except OSError as error:
        fix = "make room there or let it be written, and go on with --resume"
        raise RunError(f"'{path}' cannot be written: {error.strerror or error}", who="output.dir", fix=fix) from None


def write_whole(path: Path, text: str) -> None:
    """Whole, or not at all. Raises RunError where the disk does not take it."""
    partial = path.with_name(f".{path.name}.partial")
    with writing(path):
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
