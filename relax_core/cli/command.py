"""A Typer command that takes the generated flags of a run beside its own options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.core import TyperCommand

OVERRIDES = "relax.overrides"


class RunCommand(TyperCommand):
    """Plugins are discovered only when a generated flag, or the help that lists them, is asked for."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the generated flags out of `args`; they are in `ctx.meta` when the command runs."""
        own = {option for param in self.params for option in (*param.opts, *param.secondary_opts)}
        mine, generated = _split(args, {name: _takes_value(self, name) for name in own} | {"--help": False})
        ctx.meta[OVERRIDES] = _parse(generated, mine) if generated else {}
        return super().parse_args(ctx, mine)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The command's own help, then every generated flag with its documentation."""
        super().format_help(ctx, formatter)
        _print_flags()


def _takes_value(command: TyperCommand, name: str) -> bool:
    return any(name in param.opts and not getattr(param, "is_flag", False) for param in command.params)


def _split(args: list[str], own: dict[str, bool]) -> tuple[list[str], list[str]]:
    """The command's own options and positional arguments; the generated flags with their values."""
    from relax_core.cli.flags import flag_table, normalized
    from relax_core.registry import Registry

    if not any(arg.startswith("--") and arg.split("=")[0] not in own for arg in args):
        return args, []
    table = flag_table(Registry.load(_plugin_files(args)))
    mine, generated, rest = [], [], list(args)
    while rest:
        token = rest.pop(0)
        name, equals, _ = token.partition("=")
        if not token.startswith("--") or name in own:
            mine.append(token)
            mine += [rest.pop(0)] if own.get(name) and not equals and rest else []
            continue
        generated.append(token)
        flag = table.get(normalized(name))
        positive = table.get("--" + normalized(name).removeprefix("--no-"))
        switch = (flag or positive) is not None and (flag or positive).is_switch  # type: ignore[union-attr]
        follows = bool(rest) and not equals
        if follows and (rest[0].lower() in ("true", "false") if switch else flag is not None):
            generated.append(rest.pop(0))
    return mine, generated


def _parse(generated: list[str], mine: list[str]) -> dict[str, Any]:
    from relax_core.cli.flags import flag_table, parse
    from relax_core.registry import Registry

    return parse(generated, flag_table(Registry.load(_plugin_files(mine))))


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
