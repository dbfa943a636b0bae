"""`relax plugins validate`."""

from __future__ import annotations

import json

import pytest
from sources import CLIPPED, HEAD, estimator, loss

from relax_core.conformance.page import entries
from relax_core.discovery import DISABLE

WRONG_SIGN = loss(CLIPPED + "return PolicyLoss(-per_token)")
BY_RATIO = loss(
    CLIPPED + "return PolicyLoss(per_token * config.factor)",
    more=", config=Config",
    head='class Config(AlgorithmConfig):\n    factor: float = 1.0\n    """A factor."""\n',
).replace("policy_loss(batch)", "policy_loss(batch, config)")


def test_a_finding_is_a_block_with_everything_that_helps(relax, plugin_file):
    path = plugin_file(WRONG_SIGN)
    result = relax("plugins", "validate", path)
    assert result.code == 1
    first, observed, allowed, fix, reproduce, *_ = result.out.splitlines()
    assert first == "RLX831 error: mine: policy_loss: on policy it is not the policy gradient"
    assert observed.startswith("  observed  gradient of log_probs[")
    assert allowed.endswith(" ± 1e-09")
    assert fix == "  fix       check the sign and the scale; or declare policy_gradient=False"
    assert reproduce == f"  reproduce relax plugins validate {path} --only RLX831"
    assert result.out.splitlines()[-1].endswith("checks, 1 errors, 0 warnings")


def test_the_command_that_a_finding_names_shows_it_again(relax, plugin_file):
    command = relax("plugins", "validate", plugin_file(WRONG_SIGN)).out.split("reproduce ")[1].splitlines()[0]
    again = relax(*command.split()[1:])
    assert (again.code, "RLX831" in again.out, "1 checks" in again.out) == (1, True, True)


def test_json_is_versioned_and_whole(relax, plugin_file):
    result = json.loads(relax("plugins", "validate", plugin_file(WRONG_SIGN), "--json").out)
    assert (result["version"], result["ok"]) == (1, False)
    (report,) = result["reports"]
    assert (report["plugin"], report["loaded"]) == ("mine", True)
    assert {"RLX701", "RLX801", "RLX831"} <= set(report["checked"])
    (finding,) = report["findings"]
    keys = {"id", "plugin", "severity", "cause", "observed", "allowed", "fix", "reproduce"}
    assert finding.keys() == keys


def test_warnings_alone_are_no_failure(relax, plugin_file):
    result = relax("plugins", "validate", plugin_file(loss(declared="requires_reference=True")))
    assert result.code == 0
    assert "RLX852 warning" in result.out
    assert "0 errors, 1 warnings" in result.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rlo",), "unknown plugin 'rlo'. Fix: did you mean 'rloo'?"),
        (("missing.py",), "missing.py: no such file"),
        ((), "name one plugin, or all"),
        (("rloo", "--all"), "name one plugin, or all"),
        (("rloo", "--tier", "numerical"), "no tier is called 'numerical'. Fix: did you mean 'numeric'?"),
        (("rloo", "--only", "RLX9999"), "no check is called 'RLX9999'"),
    ],
)
def test_what_cannot_be_understood_is_a_usage_error(relax, arguments, message):
    result = relax("plugins", "validate", *arguments)
    assert result.code == 2
    assert message in result.err


def test_the_nearest_name_may_be_that_of_an_environment(relax, install):
    install("somebody", "word_hunt", "async def generate(prompt, sampler): ...", group="relax.environments")
    result = relax("plugins", "validate", "word_hnt")
    message = "unknown plugin 'word_hnt'. Fix: did you mean 'word_hunt'?"
    assert (result.code, result.err) == (2, f"error: relax plugins validate: {message}\n")


def test_a_plugin_that_cannot_be_imported(relax, plugin_file):
    result = relax("plugins", "validate", plugin_file(HEAD + "import no_such_module\n"))
    assert result.code == 3
    assert "RLX701 error: mine: importing it raises an exception" in result.out
    assert "No module named 'no_such_module' (mine.py:6)" in result.out


def test_a_plugin_that_is_broken_and_can_be_looked_at(relax, plugin_file):
    source = estimator().replace("compute_advantage(rollout)", "compute_advantage(rollouts)")
    result = relax("plugins", "validate", plugin_file(source))
    assert result.code == 1
    assert "compute_advantage has no 'rollouts'" in result.out
    assert "did you mean 'rollout'?" in result.out


def test_a_plugin_that_is_switched_off(relax, monkeypatch):
    monkeypatch.setenv(DISABLE, "rloo")
    result = relax("plugins", "validate", "rloo")
    assert result.code == 3
    assert f"take 'rloo' out of {DISABLE}" in result.err


def test_when_nothing_is_checked(relax, plugin_file):
    result = relax("plugins", "validate", plugin_file(loss()), "--only", "RLX881")
    assert result.code == 5
    assert "nothing was checked" in result.err


def test_fields_of_a_run_file_take_the_place_of_the_defaults(relax, plugin_file, tmp_path):
    path, run = plugin_file(BY_RATIO), tmp_path / "run.yaml"
    assert relax("plugins", "validate", path).code == 0
    run.write_text("algorithm: {factor: 2.0}\n")
    result = relax("plugins", "validate", path, "--config", run)
    assert result.code == 1
    assert "RLX831" in result.out
    assert f"--only RLX831 --config {run}" in result.out


def test_another_seed_is_another_batch(relax, plugin_file):
    path = plugin_file(WRONG_SIGN)
    first, second = (relax("plugins", "validate", path, "--seed", seed).out for seed in (0, 1))
    assert "--only RLX831 --seed 1" in second
    assert first.splitlines()[1] != second.splitlines()[1]


def test_every_id_has_its_entry_in_the_documentation():
    text = entries()
    assert text.count("### RLX") == text.count("Likely fix: ") > 50
    assert "### RLX852 (warning)" in text
