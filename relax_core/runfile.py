"""A run file and its flags -> a checked configuration. What is wrong is said with the file and line, all of it at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError, create_model
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from relax_core.compose import Choice, choose, compose, owners_of
from relax_core.config import RunConfig
from relax_core.errors import UsageError, nearest
from relax_core.registry import Registry

Location = tuple[str | int, ...]


@dataclass(frozen=True)
class RunFile:
    """What was read: plain values, and the line of every key."""

    path: Path
    values: dict[str, Any]
    lines: Mapping[Location, int]

    @property
    def base(self) -> Path:
        """Where relative paths in the file start."""
        return self.path.resolve().parent


@dataclass(frozen=True)
class ResolvedRun:
    """A run whose names and types are right. `ignored` holds options that no chosen plugin reads, with their owners."""

    config: RunConfig
    registry: Registry
    choice: Choice
    base: Path
    ignored: tuple[tuple[str, str], ...] = field(default=())


def read(path: Path) -> RunFile:
    """Parse a run file. Raises `UsageError` for a file that is missing, unreadable or malformed."""
    try:
        text = path.read_text(encoding="utf-8")
        document = YAML(typ="rt").load(text)
    except FileNotFoundError:
        raise UsageError("no such file", who=str(path), fix="name an existing run file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be read: {error}", who=str(path)) from None
    except YAMLError as error:
        raise _malformed(path, error) from None
    if not isinstance(document, CommentedMap):
        raise UsageError("not a mapping of sections", who=str(path), fix="write sections such as 'model:' and 'data:'")
    return RunFile(path, _plain(document), dict(_lines(document, ())))


def resolve(
    run_file: RunFile, overrides: Mapping[str, Any] | None = None, plugin_files: Sequence[Path] = ()
) -> ResolvedRun:
    """Merge flags (`overrides`, by dotted path) into the file's values, choose the plugins, and check every field."""
    values = merged(run_file.values, overrides or {})
    algorithm = values.setdefault("algorithm", {})
    files = [*_plugin_files(run_file, algorithm), *plugin_files]
    if plugin_files and isinstance(algorithm, dict):
        algorithm["plugins"] = [str(path.resolve()) for path in files]
    registry = Registry.load(files)
    choice = choose(registry, algorithm if isinstance(algorithm, dict) else {})
    model = compose(registry, choice)
    ignored = _take_ignored(registry, model, algorithm)
    config_model = create_model("Run", __base__=RunConfig, algorithm=(model, model()))
    try:
        config = config_model.model_validate(values)
    except ValidationError as error:
        raise _invalid(run_file, error, config_model, overrides or {}) from None
    return ResolvedRun(config, registry, choice, run_file.base, ignored)


def merged(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The values with the overrides put at their dotted paths; an empty section counts as {}."""
    result = {name: {} if section is None else _copy(section) for name, section in values.items()}
    for path, value in overrides.items():
        *parents, last = path.split(".")
        home: Any = result
        for parent in parents:
            if not isinstance(home.get(parent), dict):
                home[parent] = {}
            home = home[parent]
        home[last] = value
    return result


def _copy(value: Any) -> Any:
    return {name: _copy(each) for name, each in value.items()} if isinstance(value, dict) else value


def _plugin_files(run_file: RunFile, algorithm: Any) -> list[Path]:
    names = algorithm.get("plugins", []) if isinstance(algorithm, dict) else []
    names = names if isinstance(names, list) else []
    beside = [run_file.base / str(name) for name in names]
    return [path if path.is_file() else Path(str(name)) for path, name in zip(beside, names, strict=True)]


def _take_ignored(registry: Registry, model: type[BaseModel], algorithm: Any) -> tuple[tuple[str, str], ...]:
    """Options of plugins that were not chosen are no typing mistakes: they are told apart, for the start-up check."""
    unknown = [name for name in algorithm if name not in model.model_fields] if isinstance(algorithm, dict) else []
    owned = {name: owners for name in unknown if (owners := owners_of(registry, str(name)))}
    for name in owned:
        del algorithm[name]
    return tuple((f"algorithm.{name}", " or ".join(owners)) for name, owners in owned.items())


def _invalid(
    run_file: RunFile, error: ValidationError, model: type[BaseModel], overrides: Mapping[str, Any]
) -> UsageError:
    lines = [_explain(run_file, each, model, overrides) for each in error.errors()]
    return UsageError("\n".join(lines))


def _explain(run_file: RunFile, error: Any, model: type[BaseModel], overrides: Mapping[str, Any]) -> str:
    location: Location = error["loc"]
    path = ".".join(str(part) for part in location)
    where = f"flag --{path}" if path in overrides else _where(run_file, location)
    if error["type"] == "extra_forbidden":
        known = _known(model, location[:-1])
        hint = nearest(str(location[-1]), known) or f"known: {', '.join(known)}"
        return f"{where}: {path}: unknown key. Fix: {hint}"
    if error["type"] == "missing":
        return f"{where}: {path}: missing. Fix: {_describe(model, location)}"
    given = "" if isinstance(error["input"], dict | list) else f", not {error['input']!r}"
    message = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    return f"{where}: {path}: {message}{given}"


def _where(run_file: RunFile, location: Location) -> str:
    for end in range(len(location), 0, -1):
        if location[:end] in run_file.lines:
            return f"{run_file.path}:{run_file.lines[location[:end]]}"
    return str(run_file.path)


def model_at(model: Any, location: Location) -> type[BaseModel] | None:
    """The section's model at a location of the tree."""
    for part in location:
        if not (isinstance(model, type) and issubclass(model, BaseModel)) or part not in model.model_fields:
            return None
        annotation = model.model_fields[str(part)].annotation
        model = next((each for each in get_args(annotation) if isinstance(each, type)), annotation)
    return model if isinstance(model, type) and issubclass(model, BaseModel) else None


def _known(model: type[BaseModel], location: Location) -> list[str]:
    section = model_at(model, location)
    return list(section.model_fields) if section else []


def _describe(model: type[BaseModel], location: Location) -> str:
    section = model_at(model, location[:-1])
    found = section.model_fields.get(str(location[-1])) if section else None
    return (found.description if found else None) or "give it"


def _plain(value: Any) -> Any:
    if isinstance(value, CommentedMap):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, CommentedSeq):
        return [_plain(each) for each in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def _lines(value: Any, location: Location) -> Iterator[tuple[Location, int]]:
    items: Any = (
        value.items()
        if isinstance(value, CommentedMap)
        else enumerate(value)
        if isinstance(value, CommentedSeq)
        else ()
    )
    for name, each in items:
        here = (*location, name)
        yield here, value.lc.data[name][0] + 1
        yield from _lines(each, here)


def _malformed(path: Path, error: YAMLError) -> UsageError:
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        reason = " ".join(str(error.problem).split())
        return UsageError(f"malformed YAML: {reason}", who=f"{path}:{error.problem_mark.line + 1}")
    return UsageError(f"malformed YAML: {' '.join(str(error).split())}", who=str(path))
