"""Rules about the environment of a run: is there one, is it what it has to be, and does the rest of the run go with it."""

from __future__ import annotations

from collections.abc import Iterable

from relax_core.environments.loading import SETTING, load_environment
from relax_core.errors import LoadError
from relax_core.rules import Finding, Run, rule, rules_in

SECTION = SETTING.rpartition(".")[0]


@rule("RLX130", "The environment is found, is an async function, and its settings are its own")
def environment_is_one(run: Run) -> Iterable[Finding]:
    section = run.topology.run.rollout.environment
    if section.name is None:
        return
    try:
        environment = load_environment(section.name, run.base)
    except LoadError as error:
        yield SETTING, error.what, error.fix
        return
    for name, problem, fix in environment.problems(section.args):
        yield f"{SECTION}.args.{name}", problem, fix


@rule("RLX131", "A response of an environment is not left for the next step")
def environment_ends(run: Run) -> Iterable[Finding]:
    rollout = run.topology.run.rollout
    if rollout.environment.name is not None and rollout.partial_rollout:
        problem = "an environment plays a response to its end, and cannot go on with a part of one"
        yield "rollout.partial_rollout", problem, "write partial_rollout: false"


@rule("RLX132", "Settings of an environment are read by one", "warning")
def environment_is_there(run: Run) -> Iterable[Finding]:
    section = run.topology.run.rollout.environment
    for name, info in () if section.name is not None else type(section).model_fields.items():
        if getattr(section, name) != info.default:
            yield f"{SECTION}.{name}", "no environment is named", f"give {SETTING}, or leave it out"


RULES = rules_in(globals())
