"""Transcripts as one page that is complete in itself: nothing is loaded from anywhere, and nothing in it runs but its own."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

import jinja2

from relax_core.cli.show.pieces import LEVELS, NOT_RECORDED, largest_advantage, pieces_of, titles, visible
from relax_core.cli.show.records import Transcript

TEMPLATES = Path(__file__).parent
STYLE, SCRIPT = (TEMPLATES / name for name in ("page.css", "page.js"))


def page(run_dir: Path, found: Sequence[Transcript]) -> str:
    """The text of the page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["visible"] = visible
    style, script = (path.read_text(encoding="utf-8") for path in (STYLE, SCRIPT))
    return environment.get_template("page.html").render(
        run=str(run_dir),
        step=found[0].step,
        transcripts=[
            (each, [(*parts, pieces_of(parts[1])) for parts in zip(titles(each), each.segments, strict=True)])
            for each in found
        ],
        largest=largest_advantage(found),
        levels=[level for level in range(-LEVELS, LEVELS + 1) if level],
        not_recorded=NOT_RECORDED,
        style=style,
        script=script,
        hashes=[_hash(style), _hash(script)],
    )


def _hash(text: str) -> str:
    """What the page's own policy names as the one style or script that counts."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
