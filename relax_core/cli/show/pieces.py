"""Tokens as a reader sees them: in whole characters, with what is said of each and how strongly it is coloured."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from relax_core.cli.show.records import Segment, Transcript

LEVELS = 3
"""Shades on either side of 0."""
NOT_RECORDED = "advantages were not recorded"


@dataclass(frozen=True, slots=True)
class Piece:
    """One token, or the tokens that make a character together: `advantages` has one for each, or none is known."""

    text: str
    live: bool
    advantages: tuple[float, ...]

    @property
    def advantage(self) -> float:
        """The mean over its tokens; 0 where none is known."""
        return sum(self.advantages) / max(1, len(self.advantages))

    @property
    def mark(self) -> str:
        """What stands before it where it differs from its neighbour: `+0.71`, or `masked`."""
        if not self.live:
            return "masked"
        return f"{self.advantage:+.2f}" if self.advantages else ""

    @property
    def said(self) -> str:
        """What is told of it on its own."""
        if not self.live:
            return "masked: not trained on"
        return f"advantage {', '.join(f'{each:+.6g}' for each in dict.fromkeys(self.advantages))}"

    def level(self, largest: float) -> int:
        """Its shade: −3 to 3, 0 for no advantage or none that counts."""
        if not self.live or not self.advantage:
            return 0
        strength = max(1, round(LEVELS * min(1.0, abs(self.advantage) / largest)))
        return strength if self.advantage > 0 else -strength


def pieces_of(segment: Segment) -> list[Piece]:
    """A token without a text is a part of the one before it."""
    starts = [i for i, text in enumerate(segment.tokens) if text or i == 0]
    return [_piece(segment, begin, end) for begin, end in zip(starts, [*starts[1:], len(segment.tokens)], strict=True)]


def _piece(segment: Segment, begin: int, end: int) -> Piece:
    text, live = "".join(segment.tokens[begin:end]), any(segment.mask[begin:end])
    return Piece(visible(text), live, tuple((segment.advantages or [])[begin:end]))


def largest_advantage(found: Sequence[Transcript]) -> float:
    """Of all that count, without their signs: what has the strongest colour; 1 where there is none."""
    return max((abs(each) for transcript in found for each in _counting(transcript)), default=0.0) or 1.0


def _counting(transcript: Transcript) -> Iterator[float]:
    for segment in transcript.segments:
        yield from (value for value, live in zip(segment.advantages or [], segment.mask, strict=False) if live)


def titles(transcript: Transcript) -> list[str]:
    """Of each segment: `turn 1`, `tool calculate`, `observation` or `new context`. A turn is what is written in one go."""
    turns, found = 0, []
    for segment in transcript.segments:
        turns += segment.kind == "policy"
        shown = f"tool {segment.tool}" if segment.tool else "observation"
        found.append({"policy": f"turn {turns}", "observation": shown, "context": "new context"}[segment.kind])
    return found


def visible(text: str) -> str:
    """`text` with what would move a cursor or turn the direction of writing as escapes; line ends and tabs stay."""
    return "".join(_escaped(each) if unicodedata.category(each) in ("Cc", "Cf", "Cs") else each for each in text)


def _escaped(character: str) -> str:
    if character in "\n\t\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}":
        return character
    return f"\\u{{{ord(character):x}}}"
