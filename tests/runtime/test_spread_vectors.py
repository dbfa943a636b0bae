"""The golden vectors with their tokens on two context-parallel ranks, and their groups on two data-parallel ones."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from tests.runtime.spread import LAYOUTS, cases, supports
from tests.runtime.test_vectors import largest_error

SPREAD = [(case, layout) for case in cases() for layout in LAYOUTS if supports(case, layout)]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What both ranks came to, by case and layout."""
    directory = tmp_path_factory.mktemp("spread")
    command = [sys.executable, "-m", "tests.runtime.spread", str(directory)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    started = [subprocess.Popen([*command, str(rank)], env=environment) for rank in range(2)]
    assert [process.wait(timeout=120) for process in started] == [0, 0]
    return [torch.load(directory / f"{rank}.pt", weights_only=True) for rank in range(2)]


def test_most_vectors_are_spread():
    """All 152, less those of M2PO's loss, which is solved over a micro-batch and declares it."""
    assert len(cases()) == 152
    left_out = {layout: {c["algorithm"] for c in cases() if not supports(c, layout)} for layout in LAYOUTS}
    assert left_out == {"context": {"m2po"}, "data": {"m2po"}}


@pytest.mark.parametrize(("case", "layout"), SPREAD, ids=[f"{case['name']}-{layout}" for case, layout in SPREAD])
def test_agrees_with_the_vector(case, layout, outcomes):
    first, second = (each[f"{case['name']} {layout}"] for each in outcomes)
    lengths = [len(each["mask"]) for each in case["sequences"]]
    whole = layout == "context"
    actual = {
        "loss": first["loss"],
        "grad_logp": first["gradients"]["log_probs"] + second["gradients"]["log_probs"],
        "advantages": first["advantages"] if whole else first["advantages"] + second["advantages"],
        "loss_mask": (first["loss_mask"] if whole else first["loss_mask"] | second["loss_mask"]).long(),
        "metrics": {name.split("/")[-1]: value for name, value in first["metrics"].items()},
    }
    assert first["metrics"] == second["metrics"]
    for name, value in actual.items():
        if name in case["expected"]:
            listed = [part.tolist() for part in torch.split(value, lengths)] if torch.is_tensor(value) else value
            assert largest_error(listed, case["expected"][name]) <= 1e-9, name
