"""The template rendered as cookiecutter renders it, with Jinja alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2

TEMPLATE = Path(__file__).parent / "template"
ROOT = "{{cookiecutter.distribution}}"
JUNK = {"__pycache__", ".DS_Store"}


def questions() -> dict[str, Any]:
    """The template's variables and their defaults; a list holds the choices, the first one being the default."""
    values: dict[str, Any] = json.loads((TEMPLATE / "cookiecutter.json").read_text(encoding="utf-8"))
    return values


def template_version() -> str:
    """What a generated package records under `[tool.relax] template`."""
    return str(questions()["_template_version"])


def answers(given: Mapping[str, str]) -> dict[str, Any]:
    """Every variable: as given, or its default, which may be made of the ones before it."""
    environment, values = _environment(), dict[str, Any]()
    for name, default in questions().items():
        first = default[0] if isinstance(default, list) else default
        is_text = isinstance(first, str) and not name.startswith("_")
        values[name] = given.get(name) or (_render(environment, first, values) if is_text else first)
    return values


def files(values: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """The path of each file, below the folder that holds the package, and its text."""
    environment = _environment()
    for source in sorted((TEMPLATE / ROOT).rglob("*")):
        if source.is_file() and not JUNK & set(source.parts):
            path = _render(environment, source.relative_to(TEMPLATE).as_posix(), values)
            yield Path(path), _render(environment, source.read_text(encoding="utf-8"), values)


def write(values: Mapping[str, Any], folder: Path) -> None:
    """Write the package into `folder`; nothing is written unless all of it renders."""
    for path, text in list(files(values)):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def _environment() -> jinja2.Environment:
    options = questions().get("_jinja2_env_vars", {})
    return jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, **options)


def _render(environment: jinja2.Environment, text: str, values: Mapping[str, Any]) -> str:
    return environment.from_string(text).render(cookiecutter=values)
