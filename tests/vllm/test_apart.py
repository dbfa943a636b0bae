"""An engine in a process of its own: weights are broadcast to it, and an update that failed ends it."""

from __future__ import annotations

import pytest

from relax_core.errors import RunError
from relax_core.rollout.types import SamplingParams
from tests.vllm.conftest import PROMPTS, start

RESUME = "Fix: go on from the last checkpoint: --resume"
MIXED = f"vLLM engine: a weight update did not end, and its weights are a mixture of two versions. {RESUME}"


def test_parity_after_updates_and_no_samples_after_one_that_failed(directories):
    pair = start(directories["llama"], separate_process=True, weight_transfer="broadcast", verify_weights=True)
    params = SamplingParams(2, 16, seed=1)

    def breaks_off():
        yield from list(pair.model.named_parameters())[:7]
        raise OSError("the trainer's disk is gone")

    for version in range(3):
        groups = pair.engine.generate(PROMPTS, params)
        assert {v for group in groups for each in group for v in each.versions} == {version}
        assert pair.gap(PROMPTS, groups, 1.0) < 1e-4
        pair.change()
        pair.publish()
    with pytest.raises(RunError) as caught:
        pair.engine.update_weights(breaks_off(), 1)
    assert str(caught.value) == f"vLLM engine: a weight update failed: OSError: the trainer's disk is gone. {RESUME}"
    for attempt in (
        lambda: pair.engine.generate(PROMPTS, params),
        lambda: pair.engine.update_weights(pair.model.named_parameters(), 2),
    ):
        with pytest.raises(RunError) as caught:
            attempt()
        assert str(caught.value) == MIXED
    pair.engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["bytes", "broadcast"])
def test_parity_with_two_ranks(directories, way):
    pair = start(directories["llama"], tensor_parallel_size=2, weight_transfer=way, verify_weights=True)
    for _ in range(3):
        groups = pair.engine.generate(PROMPTS, SamplingParams(2, 16, temperature=0.7, seed=1))
        assert pair.gap(PROMPTS, groups, 0.7) < 1e-4
        pair.change()
        pair.publish()
    pair.engine.close()
