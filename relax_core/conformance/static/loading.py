"""Whether a plugin can be found and loaded at all."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING

from relax_core.conformance.check import Check, Problem, checks_in, static
from relax_core.errors import FOREIGN, describe
from relax_core.hookspecs import PROJECT
from relax_core.spec import HOOK_API

if TYPE_CHECKING:
    from relax_core.conformance.subject import Subject

DISTRIBUTION = "relax-rl"
DEPTH = 4
"""Folders above a source file in which its `pyproject.toml` is looked for."""
NAME = re.compile(r"[a-z][a-z0-9_]*")


def marked(module: object, name: str) -> bool:
    """Whether the module has that name, decorated with @hookimpl."""
    return hasattr(getattr(module, name, None), f"{PROJECT}_impl")


@static("RLX701", "The plugin can be imported", "read the line that is named")
def imports(subject: Subject) -> Iterator[Problem]:
    from relax_core.conformance.static.imports import missing_heavy_library

    if subject.module is None and not missing_heavy_library(subject):
        yield Problem("importing it raises an exception", subject.load_error, "a module")


@static("RLX702", "The entry point and the declaration have one name", "give both the same name")
def one_name(subject: Subject) -> Iterator[Problem]:
    if subject.spec is not None and subject.spec.name != subject.plugin.name:
        yield Problem("two names", f"the spec is named '{subject.spec.name}'", f"'{subject.plugin.name}'")


@static("RLX703", "A name is claimed by one plugin", "rename one, or uninstall it")
def one_claimant(subject: Subject) -> Iterator[Problem]:
    if subject.plugin.status == "shadowed":
        yield Problem("the name is claimed twice, and neither is used", subject.plugin.reason, "one of them")


@static(
    "RLX704",
    "algorithm() is marked with @hookimpl and returns an AlgorithmSpec",
    "write `@hookimpl` above `def algorithm(): return AlgorithmSpec(…)`",
)
def declares(subject: Subject) -> Iterator[Problem]:
    module = subject.module
    if module is None or inspect.isclass(module) or (subject.spec is not None and marked(module, "algorithm")):
        return
    if not callable(getattr(module, "algorithm", None)):
        yield Problem("there is no algorithm()", "none", "a function that returns an AlgorithmSpec")
    elif marked(module, "algorithm"):
        yield Problem("algorithm() does not declare", _given(module), "an AlgorithmSpec")


def _given(module: object) -> str:
    try:
        return type(module.algorithm()).__name__  # type: ignore[attr-defined]
    except FOREIGN as error:
        return describe(error)


@static(
    "RLX705", "The plugin is written for this version of the hooks", "install a release of the plugin for this relax"
)
def hook_api(subject: Subject) -> Iterator[Problem]:
    if subject.plugin.status == "incompatible":
        yield Problem("another version of the hooks", subject.plugin.reason, f"hook_api={HOOK_API}")


@static("RLX706", "The declaration says what the plugin is", "write AlgorithmSpec(name, summary, estimator=…, loss=…)")
def complete(subject: Subject) -> Iterator[Problem]:
    spec = subject.spec
    if spec is None:
        return
    if not NAME.fullmatch(spec.name):
        yield Problem("the name cannot stand in a run file or a metric", f"'{spec.name}'", "lower case, digits and _")
    if not spec.summary.strip() or "\n" in spec.summary:
        yield Problem("the summary is not one line", repr(spec.summary), "one line for `relax plugins list`")
    if not spec.roles:
        yield Problem("no role is declared, so nothing ever calls it", "no role", "an estimator, a loss or a component")


@static(
    "RLX707",
    "The package asks for a range of relax-rl that this version is in",
    "widen the range in the package's dependencies, or install a relax-rl that is in it",
)
def version_range(subject: Subject) -> Iterator[Problem]:
    from packaging.requirements import Requirement

    entry = subject.entry
    wanted = [Requirement(text) for text in (entry.dist.requires or [] if entry and entry.dist else [])]
    here = version(DISTRIBUTION)
    for each in wanted:
        if each.name == DISTRIBUTION and not each.specifier.contains(here, prereleases=True):
            yield Problem("this version of relax-rl is outside the range", f"{DISTRIBUTION} {here}", str(each))


@static(
    "RLX708",
    "The package was made from the current template",
    "compare with a fresh `relax new`, take over what you want, and write the new number under [tool.relax]",
    severity="warning",
)
def current_template(subject: Subject) -> Iterator[Problem]:
    from relax_core.scaffold.render import template_version

    made_from = _template_of(subject)
    if made_from is not None and made_from != template_version():
        yield Problem("the template has changed since", f"template {made_from}", f"template {template_version()}")


def _template_of(subject: Subject) -> str | None:
    """What `pyproject.toml` beside the sources says; None where the sources stand in no package of the template."""
    for folder in () if subject.file is None else list(subject.file.parents)[:DEPTH]:
        if (folder / "pyproject.toml").is_file():
            table = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
            template = table.get("tool", {}).get("relax", {}).get("template")
            return None if template is None else str(template)
    return None


CHECKS: tuple[Check, ...] = checks_in(globals())
