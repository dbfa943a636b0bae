"""Every check of `relax plugins validate {{ cookiecutter.plugin }}`, one test each."""

from relax_core.conformance import suite

test_conformance = suite("{{ cookiecutter.plugin }}")
