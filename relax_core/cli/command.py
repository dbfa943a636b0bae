"""A Typer command that takes the generated flags of a run beside its own options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.core import TyperCommand

OVERRIDES = "relax.overrides"
OPTIONAL = ("--resume",)
"""Options whose value may be left out."""


class RunCommand(TyperCommand):
    """Plugins are discovered only when a generated flag, or the help that lists them, is asked for."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the generated flags out of `args`; they are in `ctx.meta` when the command runs."""
        own = {name: _takes_value(param) for param in self.params for name in (*param.opts, *param.secondary_opts)}
        own["--help"] = False
        ctx.meta[OVERRIDES] = {}
        args = [f"{arg}=" if arg in OPTIONAL and _stands_alone(args[i + 1 :]) else arg for i, arg in enumerate(args)]
        if any(arg.startswith("--") and arg.split("=")[0] not in own for arg in args):
            ctx.meta[OVERRIDES], args = _parse(args, own)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The command's own help, then every generated flag with its documentation."""
        super().format_help(ctx, formatter)
        _print_flags()


def _stands_alone(rest: list[str]) -> bool:
    return not rest or rest[0].startswith("--")


def _takes_value(param: Any) -> bool:
    return not getattr(param, "is_flag", False)


def _parse(args: list[str], own: dict[str, bool]) -> tuple[dict[str, Any], list[str]]:
    from relax_core.cli.flags import flag_table, parse
    from relax_core.registry import Registry

    return parse(args, flag_table(Registry.load(_plugin_files(args))), own)


def _plugin_files(args: list[str]) -> list[Path]:
    named = [args[i + 1] for i, arg in enumerate(args[:-1]) if arg == "--plugin"]
    return [Path(name) for name in [*named, *(arg.split("=", 1)[1] for arg in args if arg.startswith("--plugin="))]]


def _print_flags() -> None:
    from rich.console import Console
    from rich.table import Table

    from relax_core.cli.flags import flag_table
    from relax_core.registry import Registry

    table = Table(title="Every field of the run file is a flag", title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("flag", no_wrap=True, style="cyan")
    table.add_column("what it is")
    for name, flag in sorted(flag_table(Registry.load()).items(), key=lambda item: ("." in item[0], item[0])):
        table.add_row(name, flag.help)
    Console().print(table)
