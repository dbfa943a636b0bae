"""The golden vectors (tests/vectors/README.md) through the real runtime."""

from __future__ import annotations

import pytest
import torch

from relax_core.conformance.case import replay
from tests.conftest import load_cases

CASES = load_cases(lambda case: "opd" not in case["config"]["algorithm"])
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}


def largest_error(actual, expected) -> float:
    """|x − y| / (1 + |y|), the largest over everything that is expected."""
    if isinstance(expected, dict):
        return max((largest_error(actual[name], value) for name, value in expected.items()), default=0.0)
    if isinstance(expected, list):
        assert len(actual) == len(expected)
        return max((largest_error(x, y) for x, y in zip(actual, expected, strict=True)), default=0.0)
    return abs(actual - expected) / (1 + abs(expected))


def test_all_vectors_are_here():
    assert len(CASES) == 148


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_agrees_with_the_vector(case, dtype, registry):
    result = replay(case, registry, dtype)
    errors = {name: largest_error(result[name], value) for name, value in case["expected"].items()}
    assert {name: error for name, error in errors.items() if not error <= TOLERANCE[dtype]} == {}


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), float("-inf"), -9999.0, 1e30])
@pytest.mark.parametrize("field", ["old_logp", "logp", "rollout_logp", "ref_logp", "entropy"])
def test_garbage_at_masked_positions_changes_nothing(field, garbage, registry):
    """Case 14: neither value nor gradient of anything."""
    (case,) = load_cases(lambda case: case["name"] == "everything-0")
    for sequence in case["sequences"]:
        sequence[field] = [
            value if live else garbage for value, live in zip(sequence[field], sequence["mask"], strict=True)
        ]
    assert largest_error(replay(case, registry), case["expected"]) <= 1e-9


POISONED = [case for case in CASES if "poisoned-mask" in case["name"]]


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("case", POISONED, ids=[case["name"] for case in POISONED])
def test_no_algorithm_looks_under_the_mask(case, garbage, registry):
    """Case 14, for every per-token value at once."""
    sequences = [
        {
            name: [x if live else garbage for x, live in zip(value, each["mask"], strict=True)]
            if isinstance(value, list) and name != "mask"
            else value
            for name, value in each.items()
        }
        for each in case["sequences"]
    ]
    assert largest_error(replay({**case, "sequences": sequences}, registry), case["expected"]) <= 1e-9
