"""The documentation says what is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.conftest import RUN

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_generated_pages_are_not_stale():
    run = subprocess.run([sys.executable, ROOT / "docs" / "generate.py", "--check"], capture_output=True, text=True)
    assert run.stdout == ""
    assert run.returncode == 0, "run `make docs`"


def custom_algorithm() -> str:
    (code,) = re.findall(r"<!-- custom algorithm -->\n```python\n(.*?)```", README, re.DOTALL)
    return code


def test_the_custom_algorithm_has_under_30_lines():
    assert len([line for line in custom_algorithm().splitlines() if line.strip()]) < 30


def test_the_custom_algorithm_trains(relax, tmp_path, model_cache):
    (command,) = re.findall(r"^    relax (train .* --plugin my_algo.py .*)$", README, re.MULTILINE)
    (tmp_path / "my_algo.py").write_text(custom_algorithm())
    arguments = [part.replace("examples/", f"{ROOT}/examples/") for part in command.split()]
    arguments = [str(tmp_path / part) if part == "my_algo.py" else part for part in arguments]
    short = (
        "--num-rollout",
        2,
        "--rollout-batch-size",
        2,
        "--cache-dir",
        model_cache,
        "--output.dir",
        tmp_path / "run",
    )
    result = relax(*arguments, *short)
    assert result.code == 0, result.err
    assert "clip_ratio: 0.3" in (tmp_path / "run" / "config.yaml").read_text()


def test_the_evaluation_of_the_readme_runs(relax, run_file, tmp_path):
    (section,) = re.findall(r"<!-- evaluation -->\n```yaml\n(.*?)```", README, re.DOTALL)
    row = {"prompt": "small 7", "answer": {"kind": "small", "count": 7}}
    (tmp_path / "held_out.jsonl").write_text(json.dumps(row) + "\n")
    result = relax("train", run_file(RUN + section), "--output.dir", tmp_path / "run")
    assert result.code == 0, result.err
    assert "warning" not in result.err
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [each["step"] for each in lines if {"eval/reward_mean", "eval/reward_best"} <= set(each)] == [0, 2]


def test_every_page_that_is_linked_exists():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_every_command_that_is_named_exists(relax):
    for words in set(re.findall(r"^    relax ((?:plugins )?[a-z]+)", README, re.MULTILINE)):
        assert relax(*words.split(), "--help").code == 0, words


def test_every_hook_stands_in_its_page_with_its_exact_signature_and_example():
    page = (ROOT / "docs" / "hooks.md").read_text()
    source = (ROOT / "relax_core" / "hookspecs.py").read_text()
    found = re.findall(r"@hookspec\ndef (\w+)(\([^)]*\) -> [^:]+):", source)
    assert len(found) == 12
    for name, signature in found:
        assert f"```python\n{name}{' '.join(signature.split())}\n```" in page, name
    for example in re.findall(r"\n {8}@hookimpl\n(.*?)\n    \"\"\"", source, re.DOTALL):
        assert textwrap.dedent(example) in page


def test_every_test_that_counted_is_still_there_and_counts_the_same_thing():
    for test, counted in json.loads((ROOT / "docs" / "reliability.json").read_text()).items():
        path, name = test.split("[")[0].split("::")
        assert f"def {name}(" in (ROOT / path).read_text(), f"{test} is gone: run `make reliability`"
        assert f'"{counted["what"]}"' in (ROOT / path).read_text(), f"{test} says something else now"
