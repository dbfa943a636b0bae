"""What is secret in the environment is neither said nor written: its variable's name stands in its place."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

NAMES = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET)$|PASSWORD", re.IGNORECASE)
"""Variables whose values are secret."""
SHORTEST = 8
"""Characters of a value that is looked for; a shorter one is found in words that have nothing to do with it."""


def redacted(text: str) -> str:
    """`text` with `$NAME` for the value of every variable that looks secret, the longest first."""
    return _hidden(text, _secrets())


def redacted_values(tree: Any) -> Any:
    """Mappings and lists as they are, with every text in them redacted."""
    return _without(tree, _secrets())


def _secrets() -> list[tuple[str, str]]:
    """Names and values, the longest value first."""
    found = [(name, value) for name, value in os.environ.items() if len(value) >= SHORTEST and NAMES.search(name)]
    return sorted(sorted(found), key=lambda each: -len(each[1]))


def _hidden(text: str, secrets: Sequence[tuple[str, str]]) -> str:
    for name, value in secrets:
        text = text.replace(value, f"${name}")
    return text


def _without(tree: Any, secrets: Sequence[tuple[str, str]]) -> Any:
    if isinstance(tree, str):
        return _hidden(tree, secrets)
    if isinstance(tree, Mapping):
        return {name: _without(each, secrets) for name, each in tree.items()}
    return [_without(each, secrets) for each in tree] if isinstance(tree, list | tuple) else tree
