"""Write the pages, and the parts of pages, that are made from declarations. `--check` says which are stale.

python docs/generate.py [--check]
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields as fields_of
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from relax_core import hookspecs
from relax_core.cli.estimate import lines_of
from relax_core.cli.plan import planned
from relax_core.cli.plugins import describe, describe_fields
from relax_core.config import RunConfig
from relax_core.conformance.environments import CHECKS as ENVIRONMENT_CHECKS
from relax_core.conformance.page import entries
from relax_core.discovery import HOOKS, Plugin
from relax_core.registry import Registry, spec_of
from relax_core.scaling.devices import DEVICES, Assumptions
from relax_core.startup import RULES

ROOT = Path(__file__).parents[1]
BUILT_IN = "relax-rl"


def built_ins() -> list[Plugin]:
    """The project's own plugins."""
    return [plugin for plugin in Registry.load().usable if plugin.distribution == BUILT_IN]


def algorithms() -> str:
    """Estimators and losses: what each computes, or whose it takes."""
    rows = []
    for plugin in built_ins():
        spec = spec_of(plugin)
        if spec.estimator or spec.loss:
            advantage = spec.estimator.formula if spec.estimator else f"that of `{spec.loss.default_estimator}`"
            loss = spec.loss.formula if spec.loss else f"that of `{spec.estimator.default_loss}`"
            rows.append((f"`{plugin.name}`", paper(spec.paper), advantage, loss, spec.kl))
    return table(("algorithm", "paper", "advantage", "policy loss", "KL"), rows)


def components() -> str:
    """Masks, weights and loss terms."""
    rows = [
        (
            f"`{plugin.name}`",
            f"`algorithm.{spec.section}`" if spec.section else "`algorithm`",
            paper(spec.paper),
            spec.component.formula,
        )
        for plugin in built_ins()
        if (spec := spec_of(plugin)).component
    ]
    return table(("component", "section", "paper", "what it does"), rows)


def details() -> str:
    """What each plugin declares, in its docstring and to the core."""
    return "\n\n".join(
        f"## `{plugin.name}`\n\n{first_paragraph(plugin)}\n\n```text\n{chr(10).join(describe(plugin))}\n```"
        for plugin in built_ins()
    )


def first_paragraph(plugin: Plugin) -> str:
    return " ".join((plugin.module.__doc__ or "").split("\n\n")[0].split())


def hooks() -> str:
    """Every hook with its exact signature, what it is for, and its example."""
    source = inspect.getsource(hookspecs)
    phase = {source.index(f"# {title}\n"): title for title in re.findall(r"# -+\n# (.+)\n# -+\n", source)}
    parts: list[str] = []
    for name in sorted(HOOKS, key=lambda name: source.index(f"def {name}(")):
        place = source.index(f"def {name}(")
        title = phase[max(start for start in phase if start < place)]
        if f"## {title}" not in parts:
            parts.append(f"## {title}")
        parts.append(hook(name))
    return "\n\n".join(parts)


def hook(name: str) -> str:
    lines = (inspect.getdoc(getattr(hookspecs, name)) or "").splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip() == "@hookimpl")
    text, code = "\n".join(lines[:start]).strip(), textwrap.dedent("\n".join(lines[start:]))
    return f"### `{name}`\n\n```python\n{signature(name)}\n```\n\n{text}\n\n```python\n{code}\n```"


def signature(name: str) -> str:
    """As it stands in `hookspecs.py`."""
    return f"{name}{inspect.signature(getattr(hookspecs, name))}".replace("'", "")


def fields() -> str:
    """Every field of the run file, the plugins' included."""
    parts = []
    for name, info in RunConfig.model_fields.items():
        section = info.annotation
        assert isinstance(section, type)
        assert issubclass(section, BaseModel)
        rows = [(f"`{name}.{key}`", default(each), each.description) for key, each in section.model_fields.items()]
        parts.append(f"## `{name}`\n\n{section.__doc__}\n\n{table(('field', 'default', 'what it is'), rows)}")
        parts += nested(name, section)
    rows = [
        (f"`{path}`", f"`{default}`", summary, f"`{plugin.name}`")
        for plugin in built_ins()
        for path, _, default, summary in describe_fields(plugin)
    ]
    parts.append(f"## Fields of the built-in plugins\n\n{table(('field', 'default', 'what it is', 'of'), rows)}")
    return "\n\n".join(parts)


def nested(name: str, section: type[BaseModel]) -> list[str]:
    """The sections within a section, as far as they have fields of their own."""
    parts = []
    for key, info in section.model_fields.items():
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            rows = [(f"`{name}.{key}.{each}`", default(of), of.description) for each, of in inner.model_fields.items()]
            if all(of.description for of in inner.model_fields.values()):
                parts.append(
                    f"### `{name}.{key}`\n\n{inner.__doc__}\n\n{table(('field', 'default', 'what it is'), rows)}"
                )
    return parts


def environment_checks() -> str:
    """The checks of environments, in a line each."""
    rows = [(f"`{each.id}`", each.severity, each.title, each.fix) for each in ENVIRONMENT_CHECKS]
    return table(("check", "severity", "what holds", "where it does not"), rows)


def rules() -> str:
    """The core's start-up rules; plugins add their own."""
    rows = [(each.code, each.severity, each.title) for each in sorted(RULES, key=lambda each: each.code)]
    return table(("code", "severity", "rule"), rows)


def plugin_rules() -> str:
    """Codes that built-in plugins use, read from their source."""
    rows = []
    for plugin in built_ins():
        source = Path(importlib.import_module(plugin.module.__name__).__file__ or "").read_text()
        rows += [(code, f"`{plugin.name}`") for code in sorted(set(re.findall(r'"(RLX\d+)"', source)))]
    return table(("code", "plugin"), sorted(rows))


def faults() -> str:
    """What was done to runs while they ran."""
    return counted(faults="faults", survived="survived", lost="lost prompts", duplicated="duplicated prompts")


def inputs() -> str:
    """What commands were given to read."""
    return counted(inputs="inputs tried", tracebacks="tracebacks")


def counted(**columns: str) -> str:
    """The figures of the tests that count these, added up by what they do; a dash for what a test does not count."""
    found: dict[str, Counter[str]] = {}
    for test in json.loads((ROOT / "docs" / "reliability.json").read_text()).values():
        found.setdefault(test.pop("what"), Counter()).update(test)
    rows = [
        (what, *(each.get(key, "–") for key in columns))
        for what, each in sorted(found.items())
        if each.keys() & columns
    ]
    total = [f"**{sum(each[key] for each in found.values())}**" for key in columns]
    return table(("what", *columns.values()), [*rows, ("**all**", *total)])


def benchmarks() -> str:
    """What `make bench` found last, and where."""
    found = json.loads((ROOT / "benchmarks" / "results.json").read_text())
    machine = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in found["machine"].items())
    head = ("item, and what ours is against", "ours", "theirs", "ratio", "target", "met")
    return f"{table(head, [row['cells'] for row in found['rows']])}\n\nMeasured on: {machine}."


def devices() -> str:
    """What the estimates know of devices."""
    rows = [
        (f"`{each.name}`", f"{each.memory / 1e9:g}" if each.memory else "the host's", f"{each.flops / 1e12:g}",
         f"{each.bandwidth / 1e9:g}", each.source)
        for each in DEVICES.values()
    ]  # fmt: skip
    return table(("device", "memory, GB", "TFLOP/s", "memory bandwidth, GB/s", "source"), rows)


def assumptions() -> str:
    """What the estimates assume, and the number."""
    return table(("assumption", "number"), [(f"`{each.name}`", f"{each.default:g}") for each in fields_of(Assumptions)])


def worked(run: str, model: str, *, sharded: bool = False) -> str:
    """What `relax plan` prints for an example."""
    config, given = f"examples/scaling/{model}.json", {}
    command = f"relax plan examples/{run} --model-config {config}"
    if sharded:
        given = {"trainer.megatron_args": {"use_distributed_optimizer": True}}
        command += " \\\n    --trainer.megatron-args '{\"use_distributed_optimizer\": true}'"
    told, _ = planned(ROOT / "examples" / run, given, [], "h100", ROOT / config, [])
    return "\n".join(("```text", f"$ {command}", *lines_of(told), "```"))


def paper(reference: str) -> str:
    if reference.startswith("arXiv:"):
        return f"[{reference}](https://arxiv.org/abs/{reference.removeprefix('arXiv:')})"
    return f"[link]({reference})" if reference.startswith("http") else reference


def default(info: object) -> str:
    required = getattr(info, "is_required", lambda: False)()
    return "required" if required else f"`{getattr(info, 'default', '')}`"


def table(head: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


GENERATED: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"algorithms": algorithms, "components": components, "benchmarks": benchmarks},
    "docs/algorithms.md": {"algorithms": algorithms, "components": components, "details": details},
    "docs/hooks.md": {"hooks": hooks},
    "docs/conformance.md": {"checks": entries},
    "docs/configuration.md": {"fields": fields},
    "docs/checks.md": {"rules": rules, "plugin-rules": plugin_rules},
    "docs/environments.md": {"environment-checks": environment_checks},
    "docs/reliability.md": {"faults": faults, "inputs": inputs},
    "docs/scaling.md": {
        "devices": devices,
        "assumptions": assumptions,
        "8": partial(worked, "recipes/qwen3_4b_grpo.yaml", "Qwen3-4B", sharded=True),
        "64": partial(worked, "scaling/64_gpus.yaml", "Qwen3-32B"),
        "1024": partial(worked, "scaling/1024_gpus.yaml", "Llama-3.1-70B"),
    },
}


def pages() -> Iterator[tuple[Path, str, str]]:
    """Each page as it is and as it should be."""
    for name, parts in GENERATED.items():
        path = ROOT / name
        before = after = path.read_text()
        for key, text in ((key, make()) for key, make in parts.items()):
            mark = re.compile(rf"(<!-- {key}: generated -->\n).*?(<!-- /{key} -->)", re.DOTALL)
            assert mark.search(after), f"{name} has no place for '{key}'"
            first, last = mark.search(after).groups()
            after = mark.sub(lambda _, new=f"{first}{text}\n{last}": new, after)
        yield path, before, after


def main() -> int:
    """Write what changed; with `--check` only say so, and exit 1 where something did."""
    stale = [(path, after) for path, before, after in pages() if before != after]
    for path, after in stale:
        print(f"{path.relative_to(ROOT)} is stale" if "--check" in sys.argv else f"wrote {path.relative_to(ROOT)}")
        if "--check" not in sys.argv:
            path.write_text(after)
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
