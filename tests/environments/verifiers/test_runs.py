"""Whole runs on an environment of `verifiers`, with a tokenizer that has a chat template."""

from __future__ import annotations

import json

import pytest

from tests.conftest import EXAMPLES

BUILD = f'''
import sys
sys.path.insert(0, "{EXAMPLES}")
from tiny_model import byte_tokenizer, random_model

TEMPLATE = (
    "{{% for tool in tools or [] %}}{{{{ tool.function.name }}}}\\n{{% endfor %}}"
    "{{% for each in messages %}}{{{{ each.role[:1] }}}}:{{{{ each.content }}}}<eos>{{% endfor %}}a:"
)


def build(directory):
    tokenizer, model = byte_tokenizer(), random_model()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(directory)
    model.save_pretrained(directory)
'''
RUN = """
model: {path: "build.py:build", cache_dir: CACHE}
data: {source: "relax_core.environments.verifiers:examples", source_args: {id: relax_test_sums, args: ARGS}}
rollout:
  rollout_batch_size: 2
  n_samples_per_prompt: 4
  max_new_tokens: 60
  environment: {name: verifiers, args: {id: relax_test_sums, args: ARGS}, max_turn_tokens: 6}
trainer: {num_rollout: 2, lr: 1e-3, num_threads: 1}
output: {tensorboard: false, samples_per_step: 100}
"""


@pytest.fixture
def train(relax, run_file, tmp_path):
    """The lines of metrics, and of samples, of a run on an environment of this kind."""

    def run(args):
        path = run_file(RUN.replace("ARGS", args))
        path.with_name("build.py").write_text(BUILD)
        result = relax("train", path, "--output.dir", tmp_path / "run")
        assert result.code == 0, result.err
        assert "Map" not in result.err, "no progress of rows between the lines of a run"
        found = [(tmp_path / "run" / f"{each}.jsonl").read_text().splitlines() for each in ("metrics", "samples")]
        return tuple([json.loads(line) for line in lines] for lines in found)

    return run


def test_the_template_has_the_tools_and_what_was_sampled_is_scored_as_it_was(train):
    metrics, samples = train("{kind: tools}")
    assert all(each["train/is_logprob_abs_diff"] < 1e-5 for each in metrics[1:])
    assert {each["prompt"] for each in samples} == {f"add\nsleep\nu:{sum}?<eos>a:" for sum in ("3+4", "5+6")}
    assert not any("resets" in each for each in samples), "the data are written as the environment writes them"


@pytest.mark.parametrize("rewrites", ["false", "true"])
def test_several_turns_of_text_are_one_response(train, rewrites):
    metrics, samples = train(f"{{kind: guess, rewrites: {rewrites}}}")
    assert all(each["train/is_logprob_abs_diff"] < 1e-5 for each in metrics[1:])
    assert all(each["rollout/turns_mean"] > 2 for each in metrics[1:])
    assert any("resets" in each for each in samples)
    shown = [part["kind"] for part in samples[0]["segments"]]
    assert ("context" in shown[1:]) == (rewrites == "true")
