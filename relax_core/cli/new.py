"""`relax new`: a package from the template."""

from __future__ import annotations

import shlex
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import typer

from relax_core.environments.loading import GROUP
from relax_core.errors import UsageError
from relax_core.registry import Registry
from relax_core.scaffold import render
from relax_core.scaffold.names import WHO, check_author, check_name


def new(name: str | None, kind: str | None, author: str | None, output: Path, ask: bool) -> None:
    """Ask for what is not given, check all of it, write the package, and say what to do next."""
    values = _answers(name, kind, author, ask)
    target = output / values["distribution"]
    if target.exists():
        raise UsageError(f"{target} exists already", who=WHO, fix="choose another name or another --output")
    if output.exists() and not output.is_dir():
        raise UsageError(f"{output} is not a directory", who=f"{WHO} --output", fix="name a directory")
    try:
        render.write(values, output)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}", who=WHO, fix="choose another --output") from None
    print(f"{target}: {values['kind']} '{values['plugin']}'. Next:")
    print(f"  cd {shlex.quote(str(target))}")
    print("  pip install --editable '.[dev]'")
    print("  pytest")


def _answers(name: str | None, kind: str | None, author: str | None, ask: bool) -> dict[str, Any]:
    """The name is checked before anything else is asked."""
    defaults = render.answers({})
    name = name or _ask("Name", defaults["name"], ask)
    check_name(name, [plugin.name for plugin in Registry.load().plugins], entry_points(group=GROUP).names)
    kinds = render.questions()["kind"]
    kind = kind or _ask(f"Kind ({', '.join(kinds)})", defaults["kind"], ask)
    if kind not in kinds:
        raise UsageError(f"there is no kind '{kind}'", who=f"{WHO} --kind", fix=f"one of: {', '.join(kinds)}")
    author = author or _ask("Author", render.answers({"name": name})["author"], ask)
    return render.answers({"name": name, "kind": kind, "author": check_author(author)})


def _ask(question: str, default: str, ask: bool) -> str:
    if not ask:
        return default
    try:
        return str(typer.prompt(question, default=default, err=True))
    except typer.Abort:
        fix = "give NAME, --kind and --author, or --no-input"
        raise UsageError(f"no answer to '{question}'; nothing was written", who=WHO, fix=fix) from None
