"""`relax compare`: equal terms, numbers that can be recomputed, and what is refused."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
import yaml

from tests.conftest import RUN

STEPS, SEEDS, THRESHOLD = 3, [5, 6], 0.05
CENTRED = """
import signal
from relax_core import Advantage, AlgorithmConfig, AlgorithmSpec, Estimator, Loss, PolicyLoss, hookimpl

class Config(AlgorithmConfig):
    depth: int = 1
    \"""How deep.\"""
    interrupt_at: int = -1
    \"""Step that somebody interrupts.\"""

@hookimpl
def algorithm():
    return AlgorithmSpec("centred", "No division by the spread", config=Config,
                         estimator=Estimator(min_group_size=2), loss=Loss())

@hookimpl
def compute_advantage(rollout, config, context):
    if context.step == config.interrupt_at:
        signal.raise_signal(signal.SIGINT)
    return Advantage(rollout.to_tokens(rollout.rewards - rollout.group_mean(rollout.rewards)))

@hookimpl
def policy_loss(batch):
    return PolicyLoss(-batch.ratio() * batch.advantages)
"""


@pytest.fixture
def compare(relax, run_file, plugin_file, tmp_path):
    """Compare grpo with a plugin, few steps; into `tmp_path/all`."""

    def run(*flags: object, text: str = RUN, algorithms: str = "grpo,centred"):
        plugin = plugin_file(CENTRED, "centred.py")
        flags = ("--num-rollout", STEPS, "--num-threads", 1, "--output", tmp_path / "all", *flags)
        return relax("compare", run_file(text), "--algorithms", algorithms, "--plugin", plugin, *flags)

    return run


def rewards(directory: Path) -> list[float]:
    return [json.loads(line)["rollout/reward_mean"] for line in (directory / "metrics.jsonl").read_text().splitlines()]


def config(directory: Path) -> dict:
    return yaml.safe_load((directory / "config.yaml").read_text())


@pytest.fixture(scope="module")
def compared(tmp_path_factory, model_cache):
    """One comparison for several tests: its directory, and what it printed as JSON."""
    import contextlib
    import io

    from relax_core.cli.app import main

    place = tmp_path_factory.mktemp("compared")
    (place / "run.yaml").write_text(RUN.replace("CACHE", str(model_cache)))
    (place / "centred.py").write_text(CENTRED)
    arguments = ["compare", place / "run.yaml", "--algorithms", "grpo,centred", "--plugin", place / "centred.py"]
    arguments += [
        "--seeds",
        2,
        "--seed",
        SEEDS[0],
        "--threshold",
        THRESHOLD,
        "--num-rollout",
        STEPS,
        "--num-threads",
        1,
    ]
    arguments += ["--lr", "1e-2", "--n-samples-per-prompt", 16, "--output", place / "all", "--json"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as exit_:
        main([str(each) for each in arguments])
    assert not exit_.value.code
    return place / "all", json.loads(out.getvalue())


def test_the_json_says_what_was_compared(compared):
    directory, printed = compared
    assert json.loads((directory / "compare.json").read_text()) == printed
    assert {key: printed[key] for key in ("version", "steps", "seeds", "threshold", "complete")} == {
        "version": 1,
        "steps": STEPS,
        "seeds": SEEDS,
        "threshold": THRESHOLD,
        "complete": True,
    }
    assert [(each["name"], each["estimator"], each["loss"]) for each in printed["algorithms"]] == [
        ("grpo", "grpo", "grpo"),
        ("centred", "centred", "centred"),
    ]


def sampled(run) -> list[dict]:
    """The responses of a run, without the advantages, which are the algorithm's."""
    lines = (run / "samples.jsonl").read_text().split("\n")
    return [json.loads(line) | {"segments": None} for line in lines if line]


def test_equal_seeds_start_equal_and_then_part(compared):
    directory, _ = compared
    for seed in SEEDS:
        grpo, centred = (directory / name / f"seed-{seed}" for name in ("grpo", "centred"))
        assert config(grpo)["trainer"] == config(centred)["trainer"]
        assert config(grpo)["trainer"]["seed"] == seed
        assert sampled(grpo)[:4] == sampled(centred)[:4]
        assert rewards(grpo)[0] == rewards(centred)[0]
        assert rewards(grpo) != rewards(centred)
    assert rewards(directory / "grpo" / "seed-5")[0] != rewards(directory / "grpo" / "seed-6")[0]


def test_the_numbers_are_those_of_the_metrics(compared):
    directory, printed = compared
    for each in printed["algorithms"]:
        curves = [rewards(directory / each["name"] / f"seed-{seed}") for seed in SEEDS]
        final, area = [curve[-1] for curve in curves], [sum(curve) / STEPS for curve in curves]
        reached = [[i + 1 for i, reward in enumerate(curve) if reward >= THRESHOLD] for curve in curves]
        steps = [found[0] for found in reached if found]
        for name, values in (("final_reward", final), ("area", area), ("steps_to_threshold", steps)):
            assert each[name]["mean"] == (pytest.approx(sum(values) / len(values)) if values else None)
            assert each[name]["std"] == (pytest.approx(statistics.stdev(values)) if len(values) > 1 else None)
            assert (each[name]["count"], each[name]["of"]) == (len(values), 2)
        assert [run["directory"] for run in each["runs"]] == [
            str(directory / each["name"] / f"seed-{seed}") for seed in SEEDS
        ]
        assert [run["final_reward"] for run in each["runs"]] == pytest.approx(final)


def test_each_run_is_an_ordinary_run_directory(compared, relax):
    directory, _ = compared
    for path in directory.glob("*/seed-*"):
        assert (path / "checkpoints" / f"step_{STEPS:06d}" / "model.safetensors").is_file()
        assert relax("plot", path).code == 0
    assert len(list(directory.glob("*/seed-*"))) == 4


def test_there_is_a_picture(compared):
    picture = (compared[0] / "compare.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000


def summary_of(curves: dict[str, list[list[float]]], threshold: float) -> dict:
    """The summary of runs with these rewards, which were never made."""
    from types import SimpleNamespace

    from relax_core.orchestration.compare import Entry, Job, Plan
    from relax_core.orchestration.summary import Curve, summarize

    def job(name: str, seed: int) -> Job:
        config = SimpleNamespace(trainer=SimpleNamespace(num_rollout=20))
        choice = SimpleNamespace(estimator=SimpleNamespace(name=name), loss=SimpleNamespace(name=name))
        resolved = SimpleNamespace(config=config, choice=choice)
        return Job(Entry(name, name, None), seed, Path(name), resolved, SimpleNamespace())

    found = [Curve(job(name, i), tuple(each)) for name, runs in curves.items() for i, each in enumerate(runs)]
    return summarize(Plan(tuple(each.job for each in found), ()), Path("run.yaml"), found, threshold)


def test_the_table():
    """By hand: the last tenth of 20 steps is 2, and a threshold is reached by the reward that equals it."""
    from relax_core.cli.compare import _table

    rising = [i / 20 for i in range(1, 21)]
    summary = summary_of({"good": [rising, [0.505] * 20], "poor": [[0.1] * 20, [0.2] * 20]}, threshold=0.75)
    assert list(_table(summary)) == [
        "ALGORITHM  FINAL REWARD   AREA           STEPS TO 0.75     SEEDS",
        "good       0.740 ± 0.332  0.515 ± 0.014  15.0 (by 1 of 2)  2",
        "poor       0.150 ± 0.071  0.150 ± 0.071  not reached       2",
    ]


def test_one_seed_has_no_spread(compare):
    result = compare("--seeds", 1, algorithms="grpo+centred", text=RUN + "algorithm: {policy_loss: grpo}\n")
    assert result.code == 0, result.err
    header, row = result.out.splitlines()
    assert header.split() == ["ALGORITHM", "FINAL", "REWARD", "AREA", "STEPS", "TO", "0.8", "SEEDS"]
    assert row.startswith("grpo+centred  0.")
    assert "±" not in row


def test_an_estimator_has_its_own_loss_whatever_the_run_file_says(compare, tmp_path):
    text = RUN + "algorithm: {advantage_estimator: centred, policy_loss: centred, depth: 2}\n"
    result = compare("--seeds", 1, text=text)
    assert result.code == 0, result.err
    grpo, centred = (config(tmp_path / "all" / name / "seed-0")["algorithm"] for name in ("grpo", "centred"))
    assert (grpo["advantage_estimator"], grpo["policy_loss"]) == ("grpo", None)
    assert centred["depth"] == 2
    assert "depth" not in grpo


def test_an_interruption_ends_the_step_and_says_what_is_there(compare, tmp_path):
    result = compare("--seeds", 2, "--algorithm.interrupt_at", 1, "--json")
    assert result.code == 130
    assert f"stopped: 1 of 4 runs went to the end, all are in {tmp_path}/all" in result.err
    report = json.loads(result.out)
    assert report == json.loads((tmp_path / "all" / "compare.json").read_text())
    assert report["complete"] is False
    assert [len(each["runs"]) for each in report["algorithms"]] == [1, 0]
    assert report["algorithms"][1]["final_reward"] == {"mean": None, "std": None, "count": 0, "of": 0}
    assert len(rewards(tmp_path / "all" / "centred" / "seed-0")) == 2
    assert not (tmp_path / "all" / "grpo" / "seed-1").exists()


def test_a_directory_with_a_run_is_refused_before_anything_starts(compare, tmp_path):
    there = tmp_path / "all" / "centred" / "seed-1"
    there.mkdir(parents=True)
    (there / "metrics.jsonl").touch()
    result = compare("--seeds", 2)
    assert result.code == 2
    assert result.err == f"error: --output: '{there}' already holds a run. Fix: give another directory\n"
    assert not (tmp_path / "all" / "grpo").exists()


def test_the_violations_of_all_are_shown_together(compare, tmp_path):
    result = compare("--n-samples-per-prompt", 1, "--temperature", 0)
    assert result.code == 1
    assert [line[: line.index(" ", line.index("RLX"))] for line in result.err.splitlines()] == [
        "error: grpo: RLX103",
        "error: grpo: RLX501",
        "error: centred: RLX103",
        "error: centred: RLX206",
    ]
    assert not (tmp_path / "all").exists()


def test_an_option_that_no_algorithm_reads_is_an_error(compare):
    result = compare(algorithms="grpo", text=RUN + "algorithm: {depth: 2}\n")
    assert result.code == 1
    assert result.err == (
        "error: grpo: RLX216 algorithm.depth: grpo would ignore it; it belongs to centred. "
        "Fix: leave it out, or choose centred\n"
    )


@pytest.mark.parametrize(
    ("algorithms", "message"),
    [
        ("grpoo", "--algorithms grpoo: unknown estimator 'grpoo'. Fix: did you mean 'grpo'?"),
        ("grpo,grpo+centerd", "--algorithms grpo+centerd: unknown loss 'centerd'. Fix: did you mean 'centred'?"),
        ("grpo,grpo", "--algorithms: 'grpo' is named twice. Fix: name it once"),
        *(
            (text, f"--algorithms: '{text}' does not name algorithms. Fix: write ESTIMATOR or ESTIMATOR+LOSS, ")
            for text in ("", "grpo,", "+grpo", "grpo+", "a+b+c")
        ),
    ],
)
def test_names_that_are_none(compare, algorithms, message):
    result = compare(algorithms=algorithms)
    assert result.code == 2
    (line,) = result.err.splitlines()
    assert line.startswith(f"error: {message}")


@pytest.mark.parametrize(
    ("flag", "path", "instead"),
    [
        ("--advantage-estimator", "algorithm.advantage_estimator", "--algorithms"),
        ("--policy-loss", "algorithm.policy_loss", "--algorithms"),
        ("--output.dir", "output.dir", "--output"),
    ],
)
def test_what_a_comparison_sets_itself_is_no_flag(compare, flag, path, instead):
    result = compare(flag, "grpo")
    assert result.code == 2
    assert result.err == f"error: flag --{path}: a comparison sets {path} itself. Fix: use {instead}\n"


def test_no_seed_at_all(compare):
    assert compare("--seeds", 0).code == 2
