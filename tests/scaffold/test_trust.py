"""A third-party package that goes wrong takes nothing else down."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scaffold.environment import EXAMPLES, PACKAGES, copy_of, flags, listed


@pytest.fixture
def site(sandbox, tmp_path):
    """Install more packages in a directory of their own, which a test names in PYTHONPATH."""

    def install(*sources: Path) -> dict[str, str]:
        sandbox.pip("install", "--no-deps", "--quiet", "--target", tmp_path / "site", *sources)
        return {"PYTHONPATH": str(tmp_path / "site")}

    return install


def test_one_that_crashes_is_shown_with_its_reason_and_takes_nothing_down(
    installed, site, generated, tmp_path, model_cache
):
    package = generated("fragile")
    module = package / "src" / "relax_fragile" / "__init__.py"
    module.write_text(module.read_text() + '\nraise OSError("libmagic.so.1 is not there")\n')
    environment = site(package)
    found = listed(installed, **environment)
    line = len(module.read_text().splitlines())
    reason = f"OSError: libmagic.so.1 is not there (__init__.py:{line})"
    assert [(each["status"], each["reason"]) for each in found["fragile"]] == [("broken", reason)]
    assert {each["status"] for name, (each,) in found.items() if name != "fragile"} == {"loaded"}
    run = flags("gmpo", tmp_path / "run", model_cache)
    done = installed.run("relax", "check", EXAMPLES / "tiny.yaml", *run, **environment)
    assert (done.code, done.err) == (0, f"warning: plugin 'fragile' (relax-fragile 0.1.0) is broken: {reason}\n")


def test_two_of_one_name_are_refused_and_both_are_named(installed, site, tmp_path, model_cache):
    rival = copy_of(PACKAGES / "relax-gmpo", tmp_path / "rival")
    settings = rival / "pyproject.toml"
    settings.write_text(settings.read_text().replace('name = "relax-gmpo"', 'name = "other-gmpo"'))
    environment = site(rival)
    found = listed(installed, **environment)
    reason = "'gmpo' is claimed by other-gmpo 0.1.0 and relax-gmpo 0.1.0"
    assert [(each["status"], each["reason"]) for each in found["gmpo"]] == [("shadowed", reason)] * 2
    run = flags("gmpo", tmp_path / "run", model_cache)
    done = installed.run("relax", "check", EXAMPLES / "tiny.yaml", *run, **environment)
    assert done.code == 3
    assert f"'gmpo' is shadowed: {reason}. Fix: uninstall one, or switch one off" in done.err
    assert found["grpo"][0]["status"] == found["dr_grpo"][0]["status"] == "loaded"


def test_the_kill_switch(installed, tmp_path, model_cache):
    off = {"RELAX_DISABLE_PLUGINS": "gmpo"}
    found = listed(installed, **off)
    assert [(each["status"], each["reason"]) for each in found["gmpo"]] == [
        ("disabled", "named in RELAX_DISABLE_PLUGINS")
    ]
    assert found["dr_grpo"][0]["status"] == "loaded"
    done = installed.run("relax", "check", EXAMPLES / "tiny.yaml", *flags("gmpo", tmp_path, model_cache), **off)
    assert done.code == 3
    assert "Fix: take 'gmpo' out of RELAX_DISABLE_PLUGINS" in done.err


def test_uninstalling_leaves_no_trace(sandbox, generated):
    def contents():
        return {path for path in sandbox.folder.rglob("*") if "__pycache__" not in path.parts}

    before = contents()
    sandbox.pip("install", "--no-deps", "--quiet", generated("passing"))
    assert "passing" in listed(sandbox)
    sandbox.pip("uninstall", "--yes", "--quiet", "relax-passing")
    assert "passing" not in listed(sandbox)
    assert contents() == before
