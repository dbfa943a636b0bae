"""`relax show` in the terminal: whole transcripts by their text, what colour adds, and what is asked for in vain."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from itertools import groupby

import pytest

from examples.tiny_model import byte_tokenizer
from tests.cli.transcripts import OLD, OTHER, TWO_TURNS, recorded
from tests.conftest import RUN

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
TRANSCRIPT = """\
run: step 2

[1/2] row row 1  trajectory 0-0  reward 1  stop  answer 42
prompt
How much is 6 times 7?
turn 1
⟨+0.50⟩calc: ⟨+0.25⟩6*7
tool calculator
 = 42
turn 2
⟨-0.75⟩ is⟨masked⟩ ⟨-0.30⟩é

[2/2] row row 2  trajectory 1-0  reward 0  stop  answer 42
prompt
How much is 6 times 7?
turn 1
⟨+0.00⟩no
"""


@pytest.fixture
def shown(relax, tmp_path):
    """Show a run directory of these records; the result."""

    def show(*flags, records=(OLD, TWO_TURNS, OTHER)):
        recorded(tmp_path / "run", *records)
        return relax("show", "run", *flags)

    return show


def line(result) -> str:
    """The one line of a usage error."""
    (found,) = result.err.splitlines()
    assert (result.code, result.out) == (2, "")
    return found


def test_turns_tools_masks_and_advantages_stand_in_the_text(shown):
    result = shown()
    assert (result.code, result.out) == (0, TRANSCRIPT)


def test_an_old_run_is_shown_as_text_and_says_so(shown):
    result = shown("--step", 1)
    assert result.out.splitlines()[2:] == [
        "[1/1] row row 1  reward 1  stop  answer 42",
        "prompt",
        "How much is 6 times 7?",
        "response (advantages were not recorded)",
        "calc: 6*7 = 42 is é",
    ]


def test_a_new_context_and_an_observation_of_no_tool_say_what_they_are(shown):
    context = {"kind": "context", "tool": None, "tokens": ["6*7", "?"], "mask": [0, 0], "advantages": None}
    told = {"kind": "observation", "tool": None, "tokens": ["go on"], "mask": [0], "advantages": [0.0]}
    last = {"kind": "policy", "tool": None, "tokens": ["42"], "mask": [1], "advantages": [0.5]}
    result = shown("--number", 1, records=[TWO_TURNS | {"segments": [told, context, last]}])
    assert result.out.splitlines()[5:] == ["observation", "go on", "new context", "6*7?", "turn 1", "⟨+0.50⟩42"]


def test_segments_without_advantages_say_so(shown):
    bare = TWO_TURNS | {"segments": [TWO_TURNS["segments"][0] | {"advantages": None}]}
    assert shown(records=[bare]).out.splitlines()[-1] == "(advantages were not recorded) calc: 6*7"


def test_a_row_and_a_number_choose(shown):
    assert re.findall(r"^\[.*trajectory (\S+)", shown("--id", "row 2").out, re.MULTILINE) == ["1-0"]
    assert re.findall(r"^\[.*trajectory (\S+)", shown("--number", 1).out, re.MULTILINE) == ["0-0"]


def test_colour_adds_nothing_to_the_words(shown, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = shown().out
    assert COLOUR.sub("", coloured) == TRANSCRIPT
    # The largest advantage is 0.75: 0.5 is two thirds of it, 0.25 one third.
    styles = {text: style for style, text in re.findall(r"\x1b\[([0-9;]+)m([^\x1b]+)\x1b", coloured)}
    assert styles["calc"].endswith("48;2;103;169;207")
    assert styles["6*7"].endswith("48;2;209;229;240")
    assert styles[" is"].endswith("48;2;179;88;6")
    assert styles["é"].endswith("48;2;254;224;182")
    assert styles[" = 42"] == "2"
    assert styles[" "] == "2;9"


def test_no_color_is_heard(shown, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "48;2" not in shown().out
    assert COLOUR.sub("", shown().out) == TRANSCRIPT


def test_what_a_response_holds_moves_no_cursor(shown):
    rude = TWO_TURNS | {"segments": [TWO_TURNS["segments"][0] | {"tokens": ["\x1b[2J", "\u202eabc\r", "[bold]\n"]}]}
    out = shown(records=[rude | {"prompt": "\x1b]0;title\x07"}]).out
    assert "\\u{1b}[2J" in out
    assert "\\u{202e}abc\\u{d}" in out
    assert "[bold]\n" in out
    assert "\n\\u{1b}]0;title\\u{7}\n" in out
    assert not set("\x1b\x07\r\u202e") & set(out)


def test_a_step_without_responses_names_those_that_have_some(shown):
    records = [OLD | {"step": step} for step in (1, 2, 3, 5, 8, 9)]
    expected = "error: --step: step 4 has no responses. Fix: steps that have some: 1 to 3, 5, 8 to 9"
    assert line(shown("--step", 4, records=records)) == expected


def test_a_row_without_responses(shown):
    assert line(shown("--id", "row 3")) == (
        "error: --id: step 2 has no response to row 'row 3'. Fix: did you mean 'row 2'?"
    )
    assert line(shown("--id", "x")) == (
        "error: --id: step 2 has no response to row 'x'. Fix: rows that have one: row 1, row 2"
    )


def test_what_is_no_run(relax, tmp_path):
    assert line(relax("show", "nowhere")) == (
        "error: RUN_DIR: 'nowhere' is not a run directory: it has no metrics.jsonl"
    )


def test_a_run_without_responses(shown):
    assert line(shown(records=[])) == (
        "error: RUN_DIR: 'run' has no responses. "
        "Fix: wait for the first step, or train with output.samples_per_step: 1 or more"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nothing\n", "Expecting value: line 1 column 1 (char 0)"),
        ('{"step": 1}\n', "id: Field required"),
        (
            json.dumps(TWO_TURNS).replace('"mask": [1, 1, 1]', '"mask": [1]') + "\n",
            "segments.0: Value error, the lists of a segment are of different lengths",
        ),
    ],
)
def test_records_that_cannot_be_read(relax, tmp_path, text, problem):
    (recorded(tmp_path / "run") / "samples.jsonl").write_text(text)
    assert line(relax("show", "run")) == f"error: RUN_DIR: 'run/samples.jsonl' cannot be read: {problem}"


def test_a_page_that_cannot_be_written(shown):
    assert line(shown("--html", "no/where.html")) == (
        "error: --html: 'no/where.html' cannot be written: No such file or directory"
    )


def test_a_run_records_what_it_trained_on(relax, run_file, tmp_path):
    """The advantages of grpo from the recorded rewards: 2 groups of 4, all of them recorded."""
    result = relax("train", run_file(RUN), "--samples-per-step", 8, "--output.dir", "run")
    assert result.code == 0, result.err
    records = [json.loads(each) for each in (tmp_path / "run" / "samples.jsonl").read_text().split("\n") if each]
    by_group = sorted(records, key=lambda each: (each["step"], each["trajectory_id"]))
    for _, group in groupby(by_group, key=lambda each: (each["step"], each["trajectory_id"].split("-")[0])):
        members = list(group)
        rewards = [each["reward"] for each in members]
        mean = sum(rewards) / 4
        spread = math.sqrt(sum((each - mean) ** 2 for each in rewards) / 3)
        for each in members:
            (segment,) = each["segments"]
            expected = (each["reward"] - mean) / (spread + 1e-6)
            assert segment["advantages"] == pytest.approx([expected] * each["tokens"], abs=1e-5)
            assert segment["mask"] == [1] * each["tokens"]
            special = "|".join(map(re.escape, byte_tokenizer().all_special_tokens))
            assert re.sub(special, "", "".join(segment["tokens"])) == each["response"]
    assert any(any(each["segments"][0]["advantages"]) for each in records)
    told = relax("show", "run", "--step", 1)
    assert told.code == 0, told.err
    assert len(re.findall(r"^turn 1$", told.out, re.MULTILINE)) == 8


def test_it_imports_no_torch(tmp_path):
    run = recorded(tmp_path / "run", TWO_TURNS)
    code = (
        "import sys\nfrom relax_core.cli.app import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass\n"
        "print([name for name in ('torch', 'transformers', 'ray', 'matplotlib') if name in sys.modules])"
    )
    for flags in ([], ["--html", str(tmp_path / "page.html")]):
        ran = subprocess.run([sys.executable, "-c", code, "show", run, *flags], capture_output=True, text=True)
        assert ran.stdout.splitlines()[-1] == "[]", ran.stderr
