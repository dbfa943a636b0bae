"""The recipes need every extra, where the other tests of this directory need Ray alone."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("vllm") and find_spec("megatron") else ["test_recipe_runs.py"]
