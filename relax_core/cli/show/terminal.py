"""Transcripts in the terminal. What a colour says stands there as a mark too, so that nothing is lost without one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.style import Style
from rich.text import Text

from relax_core.cli.show.pieces import NOT_RECORDED, Piece, largest_advantage, pieces_of, titles, visible
from relax_core.cli.show.records import Segment, Transcript

SHADES = {
    -3: Style(color="#ffffff", bgcolor="#b35806"),
    -2: Style(color="#000000", bgcolor="#f1a340"),
    -1: Style(color="#000000", bgcolor="#fee0b6"),
    1: Style(color="#000000", bgcolor="#d1e5f0"),
    2: Style(color="#000000", bgcolor="#67a9cf"),
    3: Style(color="#ffffff", bgcolor="#2166ac"),
}
"""Orange below 0, blue above: told apart by those who cannot tell red from green."""
LABEL, FAINT, MASKED = Style(bold=True), Style(dim=True), Style(dim=True, strike=True)


def draw(run_dir: Path, found: Sequence[Transcript]) -> None:
    """Print them. Text stays in the lines that it has: nothing is wrapped or cut."""
    console = Console(highlight=False, markup=False, soft_wrap=True, emoji=False)
    largest = largest_advantage(found)
    console.print(f"{run_dir}: step {found[0].step}")
    for number, transcript in enumerate(found, start=1):
        console.print()
        console.print(_heading(transcript, f"{number}/{len(found)}"))
        console.print(_block("prompt", Text(visible(transcript.prompt))))
        for title, segment in zip(titles(transcript), transcript.segments, strict=True):
            console.print(_block(title, _segment(segment, largest)))
        if not transcript.segments:
            console.print(_block(f"response ({NOT_RECORDED})", Text(visible(transcript.response))))


def _heading(transcript: Transcript, place: str) -> Text:
    facts = [f"[{place}] row {visible(transcript.id)}"]
    if transcript.trajectory:
        facts.append(f"trajectory {visible(transcript.trajectory)}")
    facts += [f"reward {transcript.reward:g}", visible(transcript.finish_reason)]
    if transcript.answer is not None:
        facts.append(f"answer {visible(str(transcript.answer))}")
    return Text("  ".join(facts), LABEL)


def _block(title: str, text: Text) -> Text:
    return Text.assemble((title, LABEL), "\n", text)


def _segment(segment: Segment, largest: float) -> Text:
    if segment.kind != "policy":
        return Text("".join(each.text for each in pieces_of(segment)), FAINT)
    shown = Text(f"({NOT_RECORDED}) ", FAINT) if segment.advantages is None else Text()
    for mark, run in groupby(pieces_of(segment), key=lambda piece: piece.mark):
        if mark:
            shown.append(f"⟨{mark}⟩", FAINT)
        for piece in run:
            shown.append(piece.text, _style(piece, largest))
    return shown


def _style(piece: Piece, largest: float) -> Style | None:
    return SHADES.get(piece.level(largest)) if piece.live else MASKED
