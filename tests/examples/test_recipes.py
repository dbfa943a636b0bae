r"""The recipes: every one passes the check; GSM8K's files become prompts that ask for `\boxed{}`; both arms run on a CPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from relax_core.data.rewards import Sample, math_answer
from relax_core.errors import LoadError
from relax_core.references import load_callable
from tests.conftest import EXAMPLES
from tests.recipes import RECIPES, tiny

PLACES = EXAMPLES / "recipes"
ONE_GPU = "qwen3_0_6b_gsm8k"
EIGHT_GPUS = ["qwen3_4b_cispo", "qwen3_4b_grpo", "qwen3_4b_m2po_async", "qwen3_4b_ppo"]
NEEDED = {"RLX121", "RLX150", "RLX170"}
"""An extra that is not installed: no fault of a recipe."""
ASK = "\nReason step by step, and put the final answer in \\boxed{}."


def test_every_recipe_is_for_one_gpu_or_for_eight():
    assert list(RECIPES) == [ONE_GPU, *EIGHT_GPUS]


def test_the_readme_lists_every_recipe():
    listed = re.findall(r"^\| `(\w+)\.yaml` \| (one|8) GPU", (EXAMPLES.parent / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == [(ONE_GPU, "one"), *((name, "8") for name in EIGHT_GPUS)]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_no_findings_on_its_hardware(relax, name):
    cluster = [] if name == ONE_GPU else ["--assume-cluster", "nodes=1,gpus=8"]
    found = json.loads(relax("check", RECIPES[name], "--json", *cluster).out)
    assert [each for each in found["findings"] if each["code"] not in NEEDED] == []
    roles = {role["role"]: role for role in found["plan"]["roles"]} if cluster else {}
    assert sum(role["gpus"] for role in roles.values()) == (8 if cluster else 0)


@pytest.fixture
def examples() -> Any:
    return load_callable("gsm8k.py:examples", who="test", base=PLACES)


def written(path: Path, rows: list[Any]) -> Path:
    """A file of these rows in the format of its suffix."""
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


ROWS = [
    {"question": " How many eggs? ", "answer": "She has 16 - 3 = <<16-3=13>>13.\n#### 13"},
    {"question": "How much is it?", "answer": "#### 3? No.\n#### 1,234,567 "},
]


@pytest.mark.parametrize("name", ["train.parquet", "train.jsonl"])
def test_both_published_formats_give_the_same_prompts(examples, tmp_path, name):
    made = examples(written(tmp_path / name, ROWS), tmp_path / "cache", think=True)
    assert made == [
        {"id": "train-1", "prompt": f"How many eggs?{ASK}", "answer": "13"},
        {"id": "train-2", "prompt": f"How much is it?{ASK}", "answer": "1234567"},
    ]
    silent = examples(written(tmp_path / name, ROWS), tmp_path / "cache")
    assert [row["prompt"] for row in silent] == [row["prompt"] + " /no_think" for row in made]


def test_the_reward_reads_the_answer_that_the_prompt_asks_for(examples, tmp_path):
    row = examples(written(tmp_path / "train.jsonl", ROWS), tmp_path / "cache")[1]
    for response, score in {
        r"So \boxed{1234567}.": 1.0,
        r"\boxed{1,234,567}": 1.0,
        r"1234567, no: \boxed{12}": 0.0,
    }.items():
        sample = Sample(row["id"], row["prompt"], response, row["answer"], {}, [1], [1], "stop")
        assert math_answer(sample) == score


def test_what_is_normalised_is_kept_and_read_again(examples, tmp_path):
    cache = tmp_path / "new" / "cache"
    source = written(tmp_path / "train.jsonl", ROWS)
    first = examples(source, cache)
    (kept,) = cache.iterdir()
    kept.write_text(kept.read_text().replace("eggs", "hens"))
    assert examples(source, cache)[0]["prompt"] == first[0]["prompt"].replace("eggs", "hens")
    assert [row["answer"] for row in examples(written(source, ROWS[:1]), cache)] == ["13"]
    assert len(list(cache.iterdir())) == 2


def message(examples: Any, *given: Path) -> str:
    with pytest.raises(LoadError) as caught:
        examples(*given)
    return caught.value.message


PUBLISHED = "Fix: give a file of GSM8K as it is published"
UNLIKE = [
    ([{"question": "?", "solution": "#### 1"}], f"no text in question and answer of row 1. {PUBLISHED}"),
    ([ROWS[0], {"question": "?", "answer": 3}, [1]], f"no text in question and answer of rows 2, 3. {PUBLISHED}"),
    ([ROWS[0], {"question": "?", "answer": "13"}], f"no final answer after '####' of row 2. {PUBLISHED}"),
    ([{"question": "?", "answer": "#### "}] * 7, f"no final answer after '####' of rows 1, 2, 3, 4, 5 and 2 more. {PUBLISHED}"),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "told"), UNLIKE)
def test_a_file_that_is_not_gsm8ks(examples, tmp_path, rows, told):
    source = written(tmp_path / "train.jsonl", rows)
    assert message(examples, source, tmp_path / "cache") == f"examples/recipes/gsm8k.py: {source}: {told}"
    assert not (tmp_path / "cache").exists()


def test_a_file_that_is_not_there(examples, tmp_path):
    assert message(examples, tmp_path / "train.parquet") == (
        f"examples/recipes/gsm8k.py: there is no file {tmp_path}/train.parquet. Fix: hf download openai/gsm8k "
        "--repo-type dataset --local-dir ~/data/gsm8k, or correct the path"
    )


def test_a_cache_that_cannot_be_written(examples, tmp_path):
    source = written(tmp_path / "train.jsonl", ROWS)
    assert message(examples, source, source) == (
        f"examples/recipes/gsm8k.py: '{source}' cannot be written: File exists. Fix: give another directory as cache"
    )


def fetched(cache: Path, directory: Path, function: str) -> subprocess.CompletedProcess:
    """A builder of qwen3.py in a process that reaches no hub: with what the hub's cache has."""
    program = f"import pathlib, qwen3; qwen3.{function}(pathlib.Path({str(directory)!r}))"
    offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(cache), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    environment = {**os.environ, **offline, "PYTHONPATH": os.pathsep.join([str(PLACES), *sys.path])}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("function", "name"), [("qwen3_0_6b", "Qwen3-0.6B"), ("qwen3_4b", "Qwen3-4B")])
def test_a_model_of_the_hubs_cache_is_copied(tmp_path, function, name):
    repository = tmp_path / "hub" / f"models--Qwen--{name}"
    for path, text in {"refs/main": "abc", "snapshots/abc/config.json": "{}", "blobs/weights": "numbers"}.items():
        (repository / path).parent.mkdir(parents=True)
        (repository / path).write_text(text)
    (repository / "snapshots/abc/model.safetensors").symlink_to(repository / "blobs/weights")
    (tmp_path / "model").mkdir()
    assert fetched(tmp_path / "hub", tmp_path / "model", function).returncode == 0
    found = {path.name: (path.read_text(), path.is_symlink()) for path in (tmp_path / "model").iterdir()}
    assert found == {"config.json": ("{}", False), "model.safetensors": ("numbers", False)}


def test_a_model_that_no_hub_gives(tmp_path):
    result = fetched(tmp_path / "hub", tmp_path / "model", "qwen3_4b")
    told = result.stderr.splitlines()[-1]
    assert told.startswith(
        "relax_core.errors.LoadError: examples/recipes/qwen3.py: Qwen/Qwen3-4B could not be downloaded: "
    )
    assert told.endswith(". Fix: hf download Qwen/Qwen3-4B --local-dir DIRECTORY where there is a network, and write DIRECTORY "
                         "as model.path")  # fmt: skip
    assert not (tmp_path / "model").exists()


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_both_arms_of_one_gpus_run_train_on_the_same_prompts(relax, tmp_path, model_cache):
    arms = ("--algorithms", "rloo,grpo", "--seeds", 1, "--output", tmp_path / "arms")
    flags = tiny(tmp_path, model_cache, **{"rollout.engine": "hf"})
    assert relax("compare", RECIPES[ONE_GPU], *arms, *flags).code == 0
    runs = [tmp_path / "arms" / name / "seed-0" for name in ("rloo", "grpo")]
    rloo, grpo = (read(run / "metrics.jsonl") for run in runs)
    assert [line["step"] for line in rloo] == [line["step"] for line in grpo] == [0, 1, 2]
    assert rloo[1]["rollout/reward_mean"] == grpo[1]["rollout/reward_mean"]
    learning = [0 < line["rollout/reward_mean"] < 1 and line["train/grad_norm"] > 0 for line in rloo[1:] + grpo[1:]]
    assert learning == [True] * 4
    first, same = (read(run / "samples.jsonl")[0] for run in runs)
    assert first | {"segments": None} == same | {"segments": None}  # whose advantages differ
    assert first["prompt"].endswith(f"{ASK} /no_think")
