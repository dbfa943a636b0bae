"""`relax`: the commands, and how an error ends."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from relax_core.cli.command import OVERRIDES, RunCommand
from relax_core.errors import RelaxError

app = typer.Typer(
    name="relax",
    help="Reinforcement-learning algorithms for language models, as plugins.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help"]},
)
plugins = typer.Typer(help="Look at the installed algorithms and components.", no_args_is_help=True)
app.add_typer(plugins, name="plugins")
runs = typer.Typer(help="Look at what runs have left behind.", no_args_is_help=True)
app.add_typer(runs, name="runs")

RunPath = Annotated[Path, typer.Argument(metavar="RUN.yaml", help="The run file.", show_default=False)]
PluginPaths = Annotated[
    list[Path] | None, typer.Option("--plugin", metavar="FILE.py", help="A plugin file, used like an installed one.")
]
RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A run directory.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON (versioned, stable).")]


@app.command(cls=RunCommand)
def train(
    context: typer.Context,
    run: RunPath,
    plugin: PluginPaths = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="[RUN_DIR]",
            help="Go on from the newest whole checkpoint of this run directory; of the newest run of the file where none "
            "is named.",
        ),
    ] = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Go on even where the objective is another one than before.")
    ] = False,
) -> None:
    """Train a policy: the main job. Every field of the run file is also a flag."""
    from relax_core.cli.train import train as start

    start(run, context.meta[OVERRIDES], plugin or [], resume, allow_changes)


@app.command(cls=RunCommand)
def check(
    context: typer.Context,
    run: RunPath,
    plugin: PluginPaths = None,
    assume_cluster: Annotated[
        str | None,
        typer.Option(
            metavar="nodes=N,gpus=N[,cpus=N]",
            help="The Ray cluster to plan for: its nodes, and the GPUs and CPUs of each, 64 where left out. Without it, "
            "this machine.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say everything that can be known before a run, without loading a model, and where Ray would place it."""
    from relax_core.cli.check import check as look

    look(run, context.meta[OVERRIDES], plugin or [], as_json, assume_cluster)


@app.command(cls=RunCommand)
def plan(
    context: typer.Context,
    run: RunPath,
    plugin: PluginPaths = None,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="a100, h100, h200, l40s or cpu; every process has one.")
    ] = "h100",
    model_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The model's config.json, where it is not in model.path yet.", show_default=False
        ),
    ] = None,
    assume: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="Instead of what is assumed and printed: training=0.35, link=50e9."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate the memory of every process, the seconds of a step and what bounds them, without any of the devices."""
    from relax_core.cli.plan import planned, tell

    tell(*planned(run, context.meta[OVERRIDES], plugin or [], device, model_config, assume or []), as_json)


@app.command(cls=RunCommand)
def compare(
    context: typer.Context,
    run: RunPath,
    algorithms: Annotated[
        str, typer.Option(metavar="A,B+C", help="Estimators, each with its own loss or, after a +, with another's.")
    ],
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each algorithm; the first has the run's seed.")] = 3,
    threshold: Annotated[float, typer.Option(help="The reward whose first step is counted.")] = 0.8,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where it all goes; left out, runs/compare-<date and time>.")
    ] = None,
    plugin: PluginPaths = None,
    as_json: AsJson = False,
) -> None:
    """Train several algorithms on one run file, with the same prompts, seeds and budget, and compare their rewards.

    An option of the run file or a flag that belongs to one of the algorithms is left out of the runs of the others.
    """
    from relax_core.cli.compare import compare as start

    start(run, algorithms, seeds, threshold, output, context.meta[OVERRIDES], plugin or [], as_json)


@app.command()
def plot(
    run_dir: RunDir,
    output: Annotated[Path | None, typer.Option(help="The picture; left out, RUN_DIR/curves.png.")] = None,
) -> None:
    """Draw reward, loss, response length and KL as a picture, and the reward in the terminal."""
    from relax_core.cli.plot import plot as draw

    draw(run_dir, output)


@app.command()
def show(
    run_dir: RunDir,
    step: Annotated[int | None, typer.Option(metavar="N", help="The step; left out, the last.")] = None,
    row: Annotated[
        str | None, typer.Option("--id", metavar="ROW", help="Only the responses to this row.", show_default=False)
    ] = None,
    number: Annotated[int | None, typer.Option(metavar="K", min=1, help="How many; left out, all.")] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write one page for a browser instead, complete in itself.", show_default=False
        ),
    ] = None,
) -> None:
    """Show responses of a step as transcripts: turns, tool calls, masks, and the advantage of each token as colour."""
    from relax_core.cli.show import show as draw

    draw(run_dir, step, row, number, html)


@app.command()
def new(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="What it is called: length-penalty.", show_default=False)
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="estimator-and-loss, loss, mask, weight or environment.", show_default=False),
    ] = None,
    author: Annotated[str | None, typer.Option(help="Who is named in its metadata.", show_default=False)] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The directory in which it is made; left out, the current one.")
    ] = None,
    no_input: Annotated[bool, typer.Option("--no-input", help="Ask nothing: take the defaults.")] = False,
) -> None:
    """Make the package of a new algorithm or environment, one that works, with its tests. Asks for what is not given."""
    from relax_core.cli.new import new as make

    make(name, kind, author, output or Path(), not no_input)


@plugins.command("list")
def list_plugins(plugin: PluginPaths = None, as_json: AsJson = False) -> None:
    """List every plugin that is installed, the broken ones with their reason."""
    from relax_core.cli.plugins import list_plugins as show

    show(plugin or [], as_json)


@plugins.command()
def info(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A plugin's name.", show_default=False)],
    plugin: PluginPaths = None,
    as_json: AsJson = False,
) -> None:
    """Show what a plugin declares: its paper, roles, capabilities, fields and flags."""
    from relax_core.cli.plugins import show_plugin as show

    show(name, plugin or [], as_json)


@plugins.command()
def replay(
    case: Annotated[
        list[Path], typer.Argument(metavar="CASE.json...", help="Cases, one in each file.", show_default=False)
    ],
    dtype: Annotated[Literal["float64", "float32"], typer.Option(help="The arithmetic.")] = "float64",
    plugin: PluginPaths = None,
    as_json: AsJson = False,
) -> None:
    """Compute algorithms on given numbers and compare with what each case expects. A bug report is one such file."""
    from relax_core.cli.replay import replay as compute

    compute(case, dtype, plugin or [], as_json)


@plugins.command()
def validate(
    target: Annotated[str | None, typer.Argument(metavar="[NAME|PATH]", help="An installed plugin, or a file.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every installed plugin.")] = False,
    tier: Annotated[
        list[str] | None,
        typer.Option(metavar="static|numeric|distributed", help="Which checks; left out, static and numeric."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="RUN.yaml", help="A run file whose algorithm section replaces the defaults.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="RLX...", help="One check by its id, or those that begin so.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the random batches.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Check plugins before they cost anything: every finding with its cause, its likely fix, and how to see it again."""
    from relax_core.cli.validate import validate_plugins

    validate_plugins(target, every, tier or [], only or [], config, seed, as_json)


@runs.command("list")
def list_runs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that holds them.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List the runs in a folder: how far each is, its reward and its algorithm."""
    from relax_core.cli.runs import list_runs as show

    show(folder, as_json)


@runs.command("show")
def show_run(run_dir: RunDir, as_json: AsJson = False) -> None:
    """Show one run: its newest metrics, its checkpoints, and what was changed or went wrong on the way."""
    from relax_core.cli.runs import show_run as show

    show(run_dir, as_json)


@runs.command("diff")
def diff_runs(
    first: RunDir,
    second: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Another one.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Show what differs between two runs: settings, plugins, and the metrics of the last step that both have."""
    from relax_core.cli.runs import diff_runs as show

    show(first, second, as_json)


def main(arguments: list[str] | None = None) -> None:
    """The console script. A `RelaxError` is one message on stderr and its exit code; never a traceback."""
    try:
        result: Any = app(arguments, standalone_mode=True)
    except RelaxError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(error.exit_code)
    sys.exit(result)
