"""`relax show`: the responses of a step as transcripts, in the terminal or as a page."""

from __future__ import annotations

from pathlib import Path

from relax_core.cli.show.records import chosen, read
from relax_core.cli.show.terminal import draw
from relax_core.errors import UsageError


def show(run_dir: Path, step: int | None, row: str | None, number: int | None, html: Path | None) -> None:
    """Print the transcripts of a step, or write them to a page and print where it is."""
    found = chosen(read(run_dir), step, row, number)
    if html is None:
        draw(run_dir, found)
        return
    from relax_core.cli.show.page import page

    try:
        html.write_text(page(run_dir, found), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"'{html}' cannot be written: {error.strerror}", who="--html") from None
    print(html)
