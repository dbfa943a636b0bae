"""Every check of `relax plugins validate dr_grpo`, one test each."""

from relax_core.conformance import suite

test_conformance = suite("dr_grpo")
