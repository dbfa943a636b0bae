"""From the name of an environment to the environment and its rows."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import Any

from relax_core.environments.trajectory import WHO, EnvironmentPrompt
from relax_core.environments.verifiers.policy import PLAYING
from relax_core.errors import FOREIGN, LoadError, RunError
from relax_core.references import missing_extra

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SOURCE = "relax_core.environments.verifiers:examples"
ROW = "verifiers"
"""Under this name a row of the data carries the environment's own."""


def loaded(name: str, args: Mapping[str, Any]) -> Any:
    """The `verifiers.Environment`, loaded once. Raises LoadError for what is none, and for one that cannot be played."""
    return _loaded(name, json.dumps(args, sort_keys=True, default=str))


@lru_cache(maxsize=8)
def _loaded(name: str, args: str) -> Any:
    try:
        import verifiers
        from datasets import disable_progress_bars
    except ImportError as error:
        raise missing_extra("verifiers", f"the environment '{name}'", who="id") from error
    disable_progress_bars()
    try:
        with _signals_kept():
            environment = verifiers.load_environment(name, **json.loads(args))
    except FOREIGN as error:
        fix = "install its package, and correct id and args"
        raise LoadError(f"verifiers loads no '{name}': {error}", who="id", fix=fix) from error
    _check(environment, name)
    if isinstance(environment, verifiers.ToolEnv):
        environment.tool_map = {key: _timed(tool) for key, tool in environment.tool_map.items()}
    return environment


def _check(environment: Any, name: str) -> None:
    leaves = list(_rubrics(environment.rubric))
    grouped = [each for rubric in leaves for each in rubric._get_group_reward_func_names()]
    if grouped:
        problem = f"{grouped[0]} of '{name}' scores a group at once, and each trajectory is scored where it ends"
        raise LoadError(problem, who="id", fix="take an environment whose rubric scores one at a time")
    if not all(each.funcs for each in leaves) or not any(any(each._get_reward_weights()) for each in leaves):
        raise LoadError(f"the rubric of '{name}' scores nothing", who="id", fix="take one whose rubrics have functions")


def _rubrics(rubric: Any) -> Iterator[Any]:
    """Those that a group of them has, or the one that it is."""
    for each in getattr(rubric, "rubrics", ()):
        yield from _rubrics(each)
    if not hasattr(rubric, "rubrics"):
        yield rubric


def rows_of(environment: Any, part: str, count: int) -> list[dict[str, Any]]:
    """Rows for `data.source`; under `verifiers` each has what the environment is given."""
    if part not in ("train", "eval"):
        raise LoadError(f"there is no part '{part}'", who="data.source_args.part", fix="write train or eval")
    try:
        rows = (environment.get_dataset if part == "train" else environment.get_eval_dataset)(n=count)
    except FOREIGN as error:
        problem = f"'{environment.env_id}' gives no rows: {error}"
        raise LoadError(problem, who="data.source_args", fix="correct id, args and part") from error
    return [_row(environment, dict(row)) for row in rows]


def row_of(prompt: EnvironmentPrompt) -> dict[str, Any]:
    """What the environment is given for a row. Raises RunError for a row that is not one of its own."""
    if ROW not in prompt.metadata:
        fix = f"write data.source: {SOURCE}"
        raise RunError(f"row '{prompt.id}' is not one of the environment's", who=WHO, fix=fix)
    return dict(prompt.metadata[ROW])


def _row(environment: Any, row: dict[str, Any]) -> dict[str, Any]:
    prompt = row["prompt"]
    if not isinstance(prompt, str):
        prompt = [{key: value for key, value in each.items() if value is not None} for each in prompt]
    identity = f"{environment.env_id}-{row['example_id']}"
    return {"id": identity, "prompt": prompt, "answer": row.get("answer"), "tools": environment.oai_tools, ROW: row}


@contextmanager
def _signals_kept() -> Iterator[None]:
    """An environment that is made takes these over: how a run ends is not its to say."""
    before = {each: signal.getsignal(each) for each in SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _timed(tool: Callable[..., Any]) -> Callable[..., Any]:
    """The tool, called as those of other environments are: in its own time, counted, and never for ever."""

    @wraps(tool)
    async def called(*arguments: Any, **named: Any) -> Any:
        sampler, trajectory = PLAYING.get()
        return await sampler.run(trajectory, tool, *arguments, **named)

    return called
