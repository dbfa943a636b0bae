"""From the name of an environment to the environment: an installed name, a file, or a module."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from relax_core.environments.trajectory import EnvironmentConfig
from relax_core.errors import LoadError, nearest
from relax_core.references import find_file, load_entry, load_file, load_module, reason

GROUP = "relax.environments"
SETTING = "rollout.environment.name"
EXAMPLE = "write `async def generate(prompt, sampler): …`, with a third argument `config` where it has a Config"
FORMS = "write an installed name, `path/to/file.py` or `package.module`"


@dataclass(frozen=True, slots=True)
class Environment:
    """A `generate` with its settings' class, None where it takes none."""

    name: str
    generate: Callable[..., Any]
    config: type[EnvironmentConfig] | None

    def arguments(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """What `generate` gets beside prompt and sampler; raises ValidationError for settings that are wrong."""
        return {} if self.config is None else {"config": self.config.model_validate(dict(args))}

    def problems(self, args: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
        """What is wrong with the settings `args`: which one, why, and the fix; a Config may raise LoadError for its own."""
        known = [] if self.config is None else list(self.config.model_fields)
        for name in args if self.config is None else ():
            yield name, f"'{self.name}' takes no settings", "leave it out"
        try:
            self.arguments(args)
        except LoadError as error:
            yield error.who, error.what, error.fix
        except ValidationError as error:
            for each in error.errors():
                path = ".".join(map(str, each["loc"]))
                if each["type"] == "extra_forbidden":
                    yield path, "unknown key", nearest(path, known) or f"known: {', '.join(known) or 'none'}"
                else:
                    yield path, each["msg"].removeprefix("Value error, ").removeprefix("Input "), "correct it"


def load_environment(name: str, base: Path, who: str = SETTING) -> Environment:
    """The environment that `name` means; a file is looked for from `base`. Raises LoadError for what is none."""
    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name in installed:
        return environment_of(load_entry(installed[name], who), name, who)
    if name.endswith(".py"):
        return environment_of(load_file(find_file(name, who, base), who), name, who)
    if "." in name:
        return environment_of(load_module(name, who), name, who)
    known = f"; installed: {', '.join(sorted(installed))}" if installed else ""
    raise LoadError(f"no environment is called '{name}'", who=who, fix=nearest(name, list(installed)) or FORMS + known)


def is_environment(target: str) -> bool:
    """Whether an installed name, or a file without an algorithm, is that of an environment."""
    if not target.endswith(".py"):
        return target in entry_points(group=GROUP).names
    try:
        body = ast.parse(Path(target).read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return False
    names = {each.name for each in body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    return "generate" in names and "algorithm" not in names


def environment_of(home: ModuleType | Any, name: str, who: str = SETTING) -> Environment:
    """The environment that a module, or an object with the same names, is. Raises LoadError with what is wrong."""
    generate, config = getattr(home, "generate", None), getattr(home, "Config", None)
    if generate is None:
        raise LoadError(f"'{name}' has no function 'generate'", who=who, fix=EXAMPLE)
    if not inspect.iscoroutinefunction(generate):
        raise LoadError(f"generate of '{name}' is no async function", who=who, fix=EXAMPLE)
    if config is not None and not (isinstance(config, type) and issubclass(config, EnvironmentConfig)):
        raise LoadError(
            f"Config of '{name}' is no EnvironmentConfig", who=who, fix="write `class Config(EnvironmentConfig):`"
        )
    given = {} if config is None else {"config": None}
    try:
        inspect.signature(generate).bind(None, None, **given)
    except TypeError as error:
        wanted = "generate(prompt, sampler, config)" if given else "generate(prompt, sampler)"
        problem = f"generate of '{name}' cannot be called as {wanted}: {reason(error)}"
        raise LoadError(problem, who=who, fix=EXAMPLE) from None
    return Environment(name, generate, config)
