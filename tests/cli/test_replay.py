"""`relax plugins replay`: exit codes, JSON, texts."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from tests.conftest import VECTORS

ROOT = Path(__file__).parents[2]
TOKENS = {"old_logp": [-1.0, -0.5], "logp": [-0.9, -0.6]}
SEQUENCES = [
    {"group": 0, "reward": 1.0, "mask": [1, 1], **TOKENS},
    {"group": 0, "reward": 0.0, "mask": [1, 0], **TOKENS},
]
CASE = {"name": "small", "algorithm": "grpo", "sequences": SEQUENCES}


@pytest.fixture
def case_file(tmp_path):
    """Write a case, changed so."""

    def write(file: str = "case.json", /, **changes: object) -> Path:
        path = tmp_path / file
        path.write_text(json.dumps(CASE | changes))
        return path

    return write


def without(key: str, sequence: dict) -> dict:
    return {name: value for name, value in sequence.items() if name != key}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_cases_that_agree(relax, dtype):
    paths = [VECTORS / f"{name}.json" for name in ("opsm-1", "everything-0", "ref-kl-k3-0")]
    result = relax("plugins", "replay", *paths, "--dtype", dtype, "--json")
    assert result.code == 0
    found = json.loads(result.out)
    assert [each["name"] for each in found] == ["opsm-1", "everything-0", "ref-kl-k3-0"]
    for each, path in zip(found, paths, strict=True):
        expected = json.loads(path.read_text())["expected"]
        assert set(each) == {"name", "status", "max_error", "result"}
        assert each["status"] == "ok"
        assert list(each["max_error"]) == list(each["result"]) == list(expected)
        assert max(each["max_error"].values()) < {"float64": 1e-9, "float32": 1e-5}[dtype]
        if "metrics" in expected:
            assert list(each["result"]["metrics"]) == list(expected["metrics"])
    assert found[0]["result"]["denominator"] == json.loads(paths[0].read_text())["expected"]["denominator"]


def test_float32_is_computed_in_float32(relax):
    single, double = (
        json.loads(relax("plugins", "replay", VECTORS / "everything-0.json", "--dtype", dtype, "--json").out)[0]
        for dtype in ("float32", "float64")
    )
    assert max(single["max_error"].values()) > 1e-10
    assert max(double["max_error"].values()) < 1e-12
    assert single["result"]["loss"] != double["result"]["loss"]


def test_a_case_that_differs(relax, case_file):
    good = case_file("good.json", expected={"denominator": 3})
    bad = case_file("bad.json", name="bad", expected={"denominator": 3, "loss_sum": 7.0, "metrics": {"loss": 0.5}})
    result = relax("plugins", "replay", good, bad, "--json")
    assert result.code == 1
    first, second = json.loads(result.out)
    assert (first["status"], second["status"]) == ("ok", "differs")
    computed = second["result"]
    assert second["max_error"] == {
        "denominator": 0.0,
        "loss_sum": pytest.approx(abs(computed["loss_sum"] - 7) / 8, rel=1e-12),
        "metrics": pytest.approx(abs(computed["metrics"]["loss"] - 0.5) / 1.5, rel=1e-12),
    }
    text = relax("plugins", "replay", good, bad).out.splitlines()
    assert text[0].split() == ["NAME", "STATUS", "WORST", "FIELD", "ERROR"]
    assert text[1].split() == ["small", "ok", "denominator", "0"]
    assert text[2].split()[:3] == ["bad", "differs", "loss_sum"]
    assert text[3] == "2 cases in float64, tolerance 1e-09: 1 ok, 1 differ, 0 failed"


@pytest.mark.parametrize(("change", "status"), [(0.9e-9, "ok"), (1.1e-9, "differs")])
def test_the_tolerance_is_relative_to_one_plus_the_expected_value(relax, case_file, change, status):
    (computed,) = json.loads(relax("plugins", "replay", case_file(), "--json").out)
    advantage = computed["result"]["advantages"]
    advantage[0][0] += change * (1 + abs(advantage[0][0]))
    path = case_file(expected={"advantages": advantage})
    assert json.loads(relax("plugins", "replay", path, "--json").out)[0]["status"] == status


@pytest.mark.parametrize(
    ("expected", "shown"),
    [
        ({"advantages": [[0.1, 0.1]]}, "0.6"),
        ({"keep.m2po_mask": [[1, 1], [1, 1]]}, None),
        ({"metrics": {"no_such_metric": 1.0}}, None),
        ({"loss": [1.0]}, ""),
        ({"loss": float("nan")}, ""),
    ],
)
def test_what_has_another_structure_or_is_not_a_number_differs(relax, case_file, expected, shown):
    result = relax("plugins", "replay", case_file(expected=expected), "--json")
    (found,) = json.loads(result.out, parse_constant=pytest.fail)
    assert result.code == 1
    assert found["status"] == "differs"
    assert list(found["max_error"].values()) == ["Infinity"]
    (value,) = found["result"].values()
    assert (value is None or value == {"no_such_metric": None}) == (shown is None)


def test_a_case_without_expected_is_just_computed(relax, case_file):
    result = relax("plugins", "replay", case_file(), "--json")
    assert result.code == 0
    (found,) = json.loads(result.out)
    assert found["status"] == "ok"
    assert found["max_error"] == {}
    assert {
        "advantages",
        "loss_mask",
        "per_token_loss",
        "grad_logp",
        "loss_sum",
        "denominator",
        "loss",
        "metrics",
    } == set(found["result"])
    advantage = 0.5 / (math.sqrt(0.5) + 1e-6)
    assert found["result"]["advantages"] == [pytest.approx([advantage] * 2), pytest.approx([-advantage, 0.0])]
    assert "nothing is expected; loss " in relax("plugins", "replay", case_file()).out


def test_numbers_that_json_has_not_are_strings_in_and_out(relax, case_file):
    first = SEQUENCES[0] | {"reward": "Infinity"}
    path = case_file(sequences=[first, SEQUENCES[1]], config={"algorithm": {"advantage_norm_mode": "none"}})
    result = relax("plugins", "replay", path, "--json")
    (found,) = json.loads(result.out, parse_constant=pytest.fail)
    assert found["result"]["advantages"] == [["Infinity", "Infinity"], [0.0, 0.0]]
    assert found["result"]["loss"] == "-Infinity"


def test_a_case_that_cannot_be_computed_leaves_the_others_alone(relax, case_file):
    paths = [
        case_file("a.json", name="a", algorithm="grpoo"),
        case_file("b.json", name="b", config={"algorithm": {"clip_ratio_lo": 0.1, "clip_ratio_c": "x"}}),
        case_file("c.json", name="c", config={"algorithm": {"ref_kl": {"enable": True}}}),
        case_file("d.json", name="d", sequences=[each | {"rolout_logp": each["logp"]} for each in SEQUENCES]),
        case_file("e.json", name="e"),
    ]
    result = relax("plugins", "replay", *paths, "--json")
    assert result.code == 1
    found = {each["name"]: each for each in json.loads(result.out)}
    assert [each["status"] for each in found.values()] == ["error"] * 4 + ["ok"]
    assert found["a"] == {"name": "a", "status": "error", "max_error": {}, "result": {}, "error": found["a"]["error"]}
    assert found["a"]["error"] == (
        "algorithm.advantage_estimator: unknown estimator 'grpoo'. Fix: did you mean 'grpo'?"
    )
    assert "config.algorithm.clip_ratio_lo: unknown key" in found["b"]["error"]
    assert "config.algorithm.clip_ratio_c: Input should be a valid number" in found["b"]["error"]
    assert "this batch has no 'ref_log_probs'" in found["c"]["error"]
    assert found["d"]["error"] == "sequences: nothing reads 'rolout_logp'. Fix: did you mean 'rollout_logp'?"
    lines = relax("plugins", "replay", *paths).out.splitlines()
    assert "unknown estimator 'grpoo'" in lines[1]
    assert lines[-1].endswith("1 ok, 0 differ, 4 failed")


def test_a_plugin_file_with_a_field_of_its_own(relax, case_file, plugin_file):
    plugin = plugin_file(
        """
        from relax_core import Advantage, AlgorithmSpec, Estimator, SequenceField, TokenField, hookimpl

        @hookimpl
        def algorithm():
            return AlgorithmSpec("turns", "Rewards of turns", estimator=Estimator(default_loss="grpo"),
                                 fields=(TokenField("turn_reward"), SequenceField("scale")))

        @hookimpl
        def compute_advantage(rollout):
            return Advantage(rollout.turn_reward * rollout.to_tokens(rollout.scale))
        """
    )
    sequences = [each | {"turn_reward": [0.5, 2.0], "scale": 3.0} for each in SEQUENCES]
    path = case_file(algorithm="turns", sequences=sequences, expected={"advantages": [[1.5, 6.0], [1.5, 0.0]]})
    result = relax("plugins", "replay", path, "--plugin", plugin, "--json")
    assert result.code == 0, result.out


FIRST, SECOND = SEQUENCES


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"sequences": [FIRST, SECOND | {"logp": [0.0], "old_logp": [0.0] * 3}]},
            "sequences[1]: old_logp has 3, logp has 1 values, mask has 2",
        ),
        (
            {"sequences": [FIRST, SECOND | {"mine": [0.0]}]},
            "sequences[1]: mine has 1 values, mask has 2",
        ),
        (
            {"sequences": [FIRST, without("old_logp", SECOND)]},
            "sequences[1] and sequences[0] do not both have old_logp",
        ),
        (
            {"sequences": [without("logp", FIRST), without("logp", SECOND)]},
            "the sequences have no logp",
        ),
        ({"sequences": []}, "sequences: List should have at least 1 item after validation, not 0"),
        (
            {"sequences": [FIRST, without("reward", SECOND)]},
            "sequences[1].reward: missing. Fix: docs/commands.md describes the format",
        ),
        ({"sequences": [FIRST | {"mask": [1, 2]}, SECOND]}, "sequences[0].mask[1]: "),
        ({"sequences": [FIRST | {"logp": [1, "x"]}, SECOND]}, "sequences[0].logp[1]: should be a valid number"),
        ({"expcted": {}}, "expcted: unknown key. Fix: did you mean 'expected'?"),
        ({"config": {"trainer": {}}}, "config.trainer: unknown key. Fix: known: algorithm"),
        (
            {"expected": {"loss": {"a": [1]}}},
            "expected.loss: should be a number, a list of numbers a sequence, or numbers by",
        ),
        ({"algorithm": None}, "algorithm: should be a valid string"),
    ],
)
def test_a_file_that_is_no_case(relax, case_file, changes, message):
    path = case_file(**changes)
    result = relax("plugins", "replay", path)
    assert result.code == 2
    assert result.out == ""
    (line,) = result.err.splitlines()
    assert line.startswith(f"error: {path}: {message}")


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ('{"name": "x",\n "algorithm" 3}', ":2", "not JSON: Expecting ':' delimiter (column 14)"),
        ("", ":1", "not JSON: Expecting value (column 1)"),
        ("[]", "", "not a case: not a mapping. Fix: docs/commands.md describes the format"),
        ("\udcff", "", "cannot be read: "),
        ("[" * 100_000, "", "not a case: nested too deeply"),
    ],
)
def test_a_file_that_is_no_json(relax, tmp_path, text, where, message):
    path = tmp_path / "case.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    result = relax("plugins", "replay", path)
    assert result.code == 2
    (line,) = result.err.splitlines()
    assert line.startswith(f"error: {path}{where}: {message}")


def test_everything_that_is_wrong_with_the_files_is_said_at_once(relax, case_file, tmp_path):
    result = relax("plugins", "replay", tmp_path / "none.json", tmp_path, case_file(), case_file("b.json", name=3))
    assert result.code == 2
    assert result.out == ""
    first, second, third = result.err.splitlines()
    assert first == f"error: {tmp_path}/none.json: no such file. Fix: name an existing case"
    assert second.startswith(f"error: {tmp_path}: cannot be read: ")
    assert third == f"error: {tmp_path}/b.json: name: should be a valid string"


def test_a_dtype_that_is_not_offered(relax, case_file):
    result = relax("plugins", "replay", case_file(), "--dtype", "float16")
    assert result.code == 2
    assert "float64" in result.err


def test_the_case_of_the_documentation_agrees(relax, tmp_path):
    (text,) = re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "commands.md").read_text(), re.DOTALL)
    (tmp_path / "case.json").write_text(text)
    result = relax("plugins", "replay", tmp_path / "case.json")
    assert result.code == 0, result.out
    assert "1 ok, 0 differ, 0 failed" in result.out
