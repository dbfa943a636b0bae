"""What is known to be wrong with evaluations before anything is loaded."""

from __future__ import annotations

import json

import pytest

from tests.conftest import EXAMPLES

TASK = f"{EXAMPLES}/tiny_task.py:examples"
HELD_OUT = ("--eval-interval", 2, "--eval-path", "held_out.jsonl")
VLLM = ("--rollout.engine", "vllm", "--trainer.device", "cpu")


@pytest.fixture
def findings(relax, run_file):
    """Check a run with these flags; gives its lines without those about the engine's installation."""

    def check(*flags: object) -> list[str]:
        found = json.loads(relax("check", run_file(), "--json", *flags).out)["findings"]
        lines = [f"{e['severity']}: {e['code']} {e['setting']}: {e['problem']}. {e['fix']}" for e in found]
        return [line for line in lines if "RLX121" not in line]

    return check


GIVE = "give exactly one of evaluation.path, evaluation.task, evaluation.source"
INTERVAL = "nothing is evaluated at interval 0. write evaluation.interval: 10, for example, or leave it out"
GREEDY = "leave it out, or write a temperature above 0"
NOT_HELD_OUT = "the same prompts are trained on, so nothing is held out. name prompts that are not those of data"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--eval-interval", 2),
         ["error: RLX111 evaluation: nothing says where held-out prompts come from. " + GIVE]),
        ((*HELD_OUT, "--evaluation.task", "leg_counting"),
         ["error: RLX111 evaluation: held-out prompts come from path and task. " + GIVE]),
        (("--eval-path", "held_out.jsonl", "--eval-temperature", 0.5, "--skip-eval-before-train"),
         [f"warning: RLX112 evaluation.{name}: {INTERVAL}" for name in ("at_start", "path", "temperature")]),
        ((*HELD_OUT, "--n-samples-per-eval-prompt", 4, "--eval-top-k", 5, "--eval-top-p", 0.9),
         ["warning: RLX113 evaluation.n_samples_per_prompt: 4 greedy samples of a prompt are all the same. " + GREEDY,
          "warning: RLX113 evaluation.top_k: greedy sampling does not read it. " + GREEDY,
          "warning: RLX113 evaluation.top_p: greedy sampling does not read it. " + GREEDY]),
        (("--eval-interval", 2, "--evaluation.source", TASK),
         ["warning: RLX114 evaluation.source: " + NOT_HELD_OUT]),
        ((*VLLM, *HELD_OUT, "--eval-temperature", 2.5),
         ["error: RLX126 evaluation.temperature: vLLM does not sample at 2.5. write 0, or 0.01 to 2.0"]),
        ((*VLLM, *HELD_OUT, "--max-model-len", 64, "--eval-max-response-len", 64),
         ["error: RLX124 rollout.max_model_len: 64 tokens do not hold a prompt of 1 and a response of 64 tokens. "
          "write 65 or more, or a smaller evaluation.max_new_tokens"]),
    ],
)  # fmt: skip
def test_a_finding_has_its_code_its_setting_and_a_fix(findings, flags, expected):
    assert findings(*flags) == expected


@pytest.mark.parametrize(
    "flags",
    [
        (),
        HELD_OUT,
        (*HELD_OUT, "--n-samples-per-eval-prompt", 4, "--eval-temperature", 0.6, "--eval-top-p", 0.9),
        ("--eval-interval", 2, "--evaluation.source", TASK, "--evaluation.source-args", "{part: test}"),
        (*VLLM, *HELD_OUT),
        (*VLLM, "--eval-temperature", 2.5, "--eval-max-response-len", 64, "--max-model-len", 64, "--eval-interval", 0),
    ],
)
def test_a_good_evaluation_has_none_of_them(findings, flags):
    assert [line for line in findings(*flags) if "RLX112" not in line] == []


@pytest.mark.parametrize("name", ["rows.jsonl", "./rows.jsonl", "../{here}/rows.jsonl"])
def test_one_file_under_two_names_is_not_held_out(relax, run_file, tmp_path, name):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    flags = ("--eval-interval", 2, "--eval-path", name.format(here=tmp_path.name))
    path = run_file("model: {path: m}\ndata: {path: rows.jsonl}\n")
    found = json.loads(relax("check", path, *flags, "--json").out)["findings"]
    assert [(each["code"], each["setting"]) for each in found] == [("RLX114", "evaluation.path")]
