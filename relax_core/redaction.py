"""What is secret in the environment is neither said nor written: its variable's name stands in its place."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

NAMES = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET)$|PASSWORD", re.IGNORECASE)
"""Variables whose values are secret."""
SHORTEST = 8
"""Characters of a value that is looked for; a shorter one is found in words that have nothing to do with it."""


def redacted(text: str) -> str:
    """`text` with `$NAME` for the value of every variable that looks secret, the longest first."""
    for name, value in sorted(os.environ.items(), key=lambda each: -len(each[1])):
        if len(value) >= SHORTEST and NAMES.search(name):
            text = text.replace(value, f"${name}")
    return text


def redacted_values(tree: Any) -> Any:
    """Mappings and lists as they are, with every text in them redacted."""
    if isinstance(tree, str):
        return redacted(tree)
    if isinstance(tree, Mapping):
        return {name: redacted_values(each) for name, each in tree.items()}
    return [redacted_values(each) for each in tree] if isinstance(tree, list | tuple) else tree
