"""Which names a new package may have. Everything is refused before anything is written."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable
from importlib.metadata import distributions
from importlib.util import find_spec

from relax_core.config import AlgorithmSection
from relax_core.errors import UsageError

WHO = "relax new"
PREFIX = "relax"
LONGEST = 40
SHAPE = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
PLACEHOLDER = "length-penalty"


def check_name(name: str, plugins: Iterable[str] = (), environments: Iterable[str] = ()) -> str:
    """The plugin's name, with `_` for `-`. Raises `UsageError` where it cannot be one, or one of those has it."""
    plugin = name.replace("-", "_")
    if len(name) > LONGEST:
        raise _refusal(name, f"longer than {LONGEST} characters", "choose a shorter one")
    if not SHAPE.fullmatch(name):
        raise _refusal(name, "not words of a-z and 0-9 joined by '-' or '_'", _repaired(name))
    if plugin.startswith(f"{PREFIX}_"):
        fix = f"write {name[len(PREFIX) + 1 :]}"
        raise _refusal(name, f"the package is called {PREFIX}-… by itself", fix)
    if keyword.iskeyword(plugin):
        raise _refusal(name, "a word of Python's", f"write {_no_keyword(name)}")
    if plugin in AlgorithmSection.model_fields:
        raise _refusal(name, "a field of the run file's algorithm section", f"write my-{name}")
    if plugin in plugins:
        raise _refusal(name, "an installed plugin has that name (relax plugins list)", f"write my-{name}")
    if plugin in environments:
        raise _refusal(name, "an installed environment has that name", f"write my-{name}")
    if _installed(plugin):
        raise _refusal(name, f"{PREFIX}-{plugin.replace('_', '-')} is installed already", f"write my-{name}")
    return plugin


def check_author(author: str) -> str:
    """The author, stripped. Raises `UsageError` where a package's metadata cannot hold the name as it is."""
    author = author.strip()
    if not author or not author.isprintable() or set(author) & set('"\\,{}'):
        raise UsageError(
            f"'{author}' cannot stand in a package's metadata",
            who=f"{WHO} --author",
            fix='write one name, without " \\ , { }',
        )
    return author


def _refusal(name: str, why: str, fix: str) -> UsageError:
    return UsageError(f"'{name}' cannot be the name: {why}", who=WHO, fix=fix)


def _repaired(name: str) -> str:
    """What the name was perhaps meant to be."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower())
    repaired = "-".join(words).lstrip("0123456789-")
    return f"write {_no_keyword(repaired) or PLACEHOLDER}"


def _no_keyword(name: str) -> str:
    return f"{name}-loss" if keyword.iskeyword(name.replace("-", "_")) else name


def _installed(plugin: str) -> bool:
    """Whether the new distribution or its module would stand in the way of one that is there."""
    name = f"{PREFIX}_{plugin}"
    taken = {re.sub(r"[-_.]+", "_", each.name).lower() for each in distributions()}
    return name in taken or find_spec(name) is not None
