"""The processes of a run, as the kernel knows them."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [each for child in map(int, children) for each in (child, *descendants(child))]


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except FileNotFoundError:
        return ""


def sockets_of(*pids: int) -> set[str]:
    """The sockets that these processes hold, by inode."""
    found = set[str]()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            with suppress(OSError):
                found |= set(re.findall(r"socket:\[(\d+)\]", str(link.readlink())))
    return found
