"""The kit on plugins that are broken on purpose: the intended id fires, and no other."""

from __future__ import annotations

import sys
import textwrap

import pytest
from broken import NUMERIC, STATIC
from fourteen import FOURTEEN
from sources import CLIPPED, component, estimator, hook, loss

from relax_core.conformance.catalogue import CHECKS
from relax_core.conformance.targets import named
from relax_core.conformance.validation import validate
from relax_core.scaffold.render import template_version

BROKEN = STATIC | NUMERIC
INSTALLED = ("RLX702", "RLX703", "RLX707", "RLX708", "RLX713")
"""Those that need an installed distribution, below."""
DISTRIBUTED = ("RLX901", "RLX902", "RLX903")
"""Those of `test_distributed.py`."""


@pytest.fixture
def found_in(plugin_file):
    """The findings on the source of a plugin."""

    def find(source, **options):
        (plugin,), registry = named(str(plugin_file(source)))
        return validate(plugin, registry, **options).findings

    return find


@pytest.mark.parametrize("id", BROKEN)
def test_a_plugin_that_one_check_alone_catches(found_in, id):
    findings = found_in(BROKEN[id])
    assert {finding.id for finding in findings} == {id}, "\n".join(line for each in findings for line in each.lines())
    for finding in findings:
        assert finding.cause
        assert finding.observed
        assert finding.allowed
        assert finding.fix
        assert f"mine.py --only {id}" in finding.reproduce


@pytest.mark.parametrize("source", [loss(), estimator()])
def test_a_good_plugin_has_no_finding(found_in, source):
    assert found_in(source) == ()


@pytest.mark.parametrize("name", FOURTEEN)
def test_each_of_fourteen_losses_has_the_findings_it_deserves(found_in, name):
    source, expected = FOURTEEN[name]
    assert {finding.id for finding in found_in(source)} == expected


def test_every_check_has_a_plugin_that_it_alone_catches():
    assert sorted(check.id for check in CHECKS) == sorted([*BROKEN, *INSTALLED, *DISTRIBUTED])


def test_a_name_that_differs_from_the_entry_point(install):
    install("acme-mine", "other", estimator())
    assert ids_of("other") == {"RLX702"}


def test_a_name_that_two_distributions_claim(install):
    install("acme-one", "mine", estimator())
    install("acme-two", "mine", estimator())
    assert ids_of("mine") == {"RLX703"}


def test_an_entry_point_that_names_a_class(tmp_path, monkeypatch):
    methods = textwrap.indent(estimator().replace("import *", "import hookimpl, AlgorithmSpec, Estimator"), "    ")
    methods = methods.replace("algorithm()", "algorithm(self)").replace("(rollout)", "(self, rollout)")
    (tmp_path / "acme_class.py").write_text(f"class Plugin:\n{methods}")
    info = tmp_path / "acme_class-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-class\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[relax.plugins]\nmine = acme_class:Plugin\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "acme_class", raising=False)
    assert ids_of("mine") == {"RLX713"}


def test_a_package_that_asks_for_another_relax(install, tmp_path):
    install("acme-mine", "mine", estimator())
    (metadata,) = tmp_path.glob("site-acme-mine/*.dist-info/METADATA")
    metadata.write_text(metadata.read_text() + "Requires-Dist: relax-rl<0.1\n")
    assert ids_of("mine") == {"RLX707"}


def test_a_package_that_asks_for_this_relax(install, tmp_path):
    install("acme-mine", "mine", estimator())
    (metadata,) = tmp_path.glob("site-acme-mine/*.dist-info/METADATA")
    metadata.write_text(metadata.read_text() + "Requires-Dist: relax-rl>=0.1\nRequires-Dist: torch<1\n")
    assert ids_of("mine") == set()


@pytest.mark.parametrize(("template", "expected"), [(template_version(), set()), ("0", {"RLX708"})])
def test_a_package_of_an_older_template(found_in, tmp_path, template, expected):
    (tmp_path / "pyproject.toml").write_text(f'[tool.relax]\ntemplate = "{template}"\n')
    findings = found_in(estimator())
    assert {finding.id for finding in findings} == expected
    assert all(finding.severity == "warning" for finding in findings)


def ids_of(name):
    plugins, registry = named(name)
    return {finding.id for plugin in plugins for finding in validate(plugin, registry).findings}


MISTAKES = {
    "groups by reshape": (
        estimator(
            "r = rollout.rewards.view(-1, 3)\n"
            "return Advantage(rollout.to_tokens((r - r.mean(1, keepdim=True)).flatten()))",
            "min_group_size=2",
        ),
        {"RLX814", "RLX881", "RLX882", "RLX883"},
    ),
    "k3 without a clamp": (
        component(
            "loss_term",
            "gap = batch.ref_log_probs - batch.log_probs\nreturn LossTerm(gap.exp() - 1 - gap, 0.1)",
            "requires_reference=True",
        ),
        {"RLX822", "RLX824"},
    ),
    "a mean in a loop over sequences": (
        loss(
            "out = torch.zeros_like(batch.log_probs)\n"
            "for i in range(batch.size):\n"
            "    mine = batch.sequence_ids == i\n"
            "    out = torch.where(mine, -(batch.ratio() * batch.advantages)[mine].mean(), out)\n"
            "return PolicyLoss(out)"
        ),
        {"RLX812", "RLX815", "RLX821", "RLX831", "RLX846", "RLX857"},
    ),
    "a capability that raises": (loss(declared="requires_reference=lambda config: config.nope"), {"RLX737"}),
    "metrics without names": (loss(CLIPPED + "return PolicyLoss(per_token, [1])"), {"RLX802"}),
    "no advantages": (estimator("return Advantage(None)"), {"RLX802"}),
    "a number as metric": (
        estimator("return Advantage(rollout.to_tokens(rollout.rewards), metrics={'a': TokenMean(3)})"),
        {"RLX862"},
    ),
    "a rule that gives a number": (
        estimator() + "\n\n" + hook("validate_topology", "return 3", "topology"),
        {"RLX891"},
    ),
    "a misspelt field": (loss("return PolicyLoss(-batch.ratio() * batch.advantage)"), {"RLX851"}),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_authors_get_wrong(found_in, name):
    source, expected = MISTAKES[name]
    assert {finding.id for finding in found_in(source)} == expected
