"""Every check of `relax plugins validate gmpo`, one test each."""

from relax_core.conformance import suite

test_conformance = suite("gmpo")
