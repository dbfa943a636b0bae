"""Seeds that no two responses of a run share."""

from __future__ import annotations

import hashlib


def seed_of(seed: int, place: int, *parts: int) -> int:
    """63 bits of the run's seed, a prompt's place, and what else tells two draws apart."""
    digest = hashlib.sha256(" ".join(map(str, (seed, place, *parts))).encode()).digest()
    return int.from_bytes(digest[:8]) >> 1


def held_out_place(index: int) -> int:
    """The place of a held-out prompt: below 0, where no prompt that is trained on is."""
    return -1 - index
