"""Whether pluggy takes the hooks as their author meant them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from relax_core import hookspecs
from relax_core.conformance.check import Check, Problem, checks_in, static
from relax_core.conformance.static.loading import marked
from relax_core.discovery import HOOKS
from relax_core.errors import nearest

if TYPE_CHECKING:
    from relax_core.conformance.subject import Subject

ROLE_OF = {
    "compute_advantage": ("estimator",),
    "value_loss": ("estimator",),
    "policy_loss": ("loss",),
}
"""Hooks that are called for a chosen role alone; the others are called for every active plugin."""


def implemented(subject: Subject) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions that are marked and have a hook's name."""
    for name in HOOKS:
        if marked(subject.module, name):
            yield name, getattr(subject.module, name)


def arguments(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters that pluggy fills."""
    found = list(inspect.signature(function).parameters.values())
    return found[1:] if inspect.isfunction(function) and found and found[0].name == "self" else found


@static("RLX711", "Every function that is marked with @hookimpl is a hook", "write the hook's name")
def known(subject: Subject) -> Iterator[Problem]:
    for name in dir(subject.module):
        if name not in HOOKS and marked(subject.module, name):
            yield Problem(f"'{name}' is not a hook", name, f"one of: {', '.join(HOOKS)}", nearest(name, HOOKS))


@static("RLX712", "Every function that is named like a hook is marked with @hookimpl", "write @hookimpl above it")
def decorated(subject: Subject) -> Iterator[Problem]:
    for name in HOOKS:
        function = getattr(subject.module, name, None)
        if callable(function) and not marked(subject.module, name) and not inspect.isclass(subject.module):
            yield Problem(f"'{name}' is never called", f"def {name}(…)", f"@hookimpl above def {name}(…)")


@static("RLX713", "The plugin is a module or an object, not a class", "name the module, or an instance of the class")
def no_class(subject: Subject) -> Iterator[Problem]:
    if inspect.isclass(subject.module):
        name = subject.module.__name__
        yield Problem("a class has no methods that could be called", f"class {name}", f"the module, or {name}()")


@static(
    "RLX714",
    "Hooks take their arguments by position",
    "take the * out, and the defaults away: pluggy fills positional arguments",
)
def positional(subject: Subject) -> Iterator[Problem]:
    for name, function in implemented(subject):
        wrong = [
            each.name
            for each in arguments(function)
            if each.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD or each.default is not inspect.Parameter.empty
        ]
        if wrong:
            problem = f"{name}: pluggy never passes {', '.join(wrong)}"
            yield Problem(problem, f"{name}{inspect.signature(function)}", "plain positional arguments")


@static("RLX715", "Hooks name only arguments that there are", "take the argument out, or correct its name")
def known_arguments(subject: Subject) -> Iterator[Problem]:
    for name, function in implemented(subject):
        there_are = list(inspect.signature(getattr(hookspecs, name)).parameters)
        for each in arguments(function):
            plain = each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and each.default is inspect.Parameter.empty
            if plain and each.name not in there_are and not inspect.isclass(subject.module):
                fix = nearest(each.name, there_are)
                yield Problem(f"{name} has no '{each.name}'", each.name, f"some of: {', '.join(there_are)}", fix)


@static(
    "RLX716",
    "Hooks return their result; only validate_topology may yield",
    "write return instead of yield",
)
def no_generator(subject: Subject) -> Iterator[Problem]:
    for name, function in implemented(subject):
        if inspect.isgeneratorfunction(function) and name != "validate_topology":
            yield Problem(f"{name} is a generator: its body never runs", "yield", "return")


@static("RLX717", "A role comes with its hook", "implement the hook, or take the role out of the spec")
def role_has_hook(subject: Subject) -> Iterator[Problem]:
    roles = subject.spec.roles if subject.spec is not None else {}
    for role, hook in (("estimator", "compute_advantage"), ("loss", "policy_loss")):
        if role in roles and not callable(getattr(subject.module, hook, None)):
            yield Problem(f"the role '{role}' has nothing to call", f"no {hook}()", f"@hookimpl def {hook}(…)")
    acts = any(callable(getattr(subject.module, name, None)) for name in HOOKS if name != "algorithm")
    if "component" in roles and not acts:
        yield Problem("the component does nothing", "no hook", "a mask, a weight, a loss term or another hook")


@static("RLX718", "A hook comes with its role", "declare the role in the spec, or take the hook out")
def hook_has_role(subject: Subject) -> Iterator[Problem]:
    roles = subject.spec.roles if subject.spec is not None else None
    for name, _ in implemented(subject) if roles else ():
        needed = ROLE_OF.get(name, ())
        if needed and not any(role in (roles or {}) for role in needed):
            yield Problem(
                f"{name} is never called", f"no role '{needed[0]}'", f"{needed[0].capitalize()}(…) in the spec"
            )


CHECKS: tuple[Check, ...] = checks_in(globals())
