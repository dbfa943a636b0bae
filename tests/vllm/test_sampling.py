"""What a rollout engine promises about its samples: seeds, frequencies, ends."""

from __future__ import annotations

import math

import pytest
import torch

from relax_core.errors import RunError
from relax_core.rollout.hf import HFSampler
from relax_core.rollout.types import SamplingParams
from tests.vllm.conftest import KNOWN, PROMPTS


def ids(groups):
    return [[each.token_ids for each in group] for group in groups]


def flat(groups):
    return [each for group in groups for each in group]


def test_the_seed_decides_and_the_global_generator_is_left_alone(qwen3):
    before = torch.get_rng_state()
    first, again, other = (qwen3.engine.generate(PROMPTS, SamplingParams(3, 12, seed=seed)) for seed in (4, 4, 5))
    assert ids(first) == ids(again)
    assert ids(first) != ids(other)
    assert torch.equal(torch.get_rng_state(), before)
    everything = [tuple(row) for group in ids(first) for row in group]
    assert len(set(everything)) == len(everything)


def test_a_sample_does_not_depend_on_what_else_is_in_the_batch(qwen3):
    params = SamplingParams(3, 12, seed=8)
    assert ids(qwen3.engine.generate(PROMPTS[:2], params)) == ids(qwen3.engine.generate(PROMPTS, params))[:2]


def test_greedy_samples_and_their_log_probs_are_those_of_the_hf_engine(pair):
    params = SamplingParams(2, 24, temperature=0.0, top_k=3, top_p=0.5)
    expected = HFSampler(pair.model, pair.tokenizer).generate(PROMPTS, params)
    actual = pair.engine.generate(PROMPTS, params)
    assert ids(actual) == ids(expected)
    for found, wanted in zip(flat(actual), flat(expected), strict=True):
        assert found.finish_reason == wanted.finish_reason
        assert found.log_probs == pytest.approx(wanted.log_probs, abs=1e-4)
    assert pair.gap(PROMPTS, actual, temperature=1.0) < 1e-4


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_frequencies_of_first_tokens_match_the_distribution(llama, temperature):
    samples, prompt = 4000, PROMPTS[1]
    (group,) = llama.engine.generate([prompt], SamplingParams(samples, 1, temperature=temperature, seed=1))
    counts = torch.bincount(torch.tensor([each.token_ids[0] for each in group]), minlength=KNOWN).double()
    expected = samples * llama.scores([prompt] * KNOWN, [[i] for i in range(KNOWN)], temperature).double().exp()
    assert float(expected.sum()) == pytest.approx(samples, rel=1e-4)
    likely = expected >= 5
    observed = torch.cat([counts[likely], counts[~likely].sum()[None]])
    wanted = torch.cat([expected[likely], expected[~likely].sum()[None]])
    statistic, freedom = float(((observed - wanted) ** 2 / wanted).sum()), int(likely.sum())
    assert freedom > 20
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)


def test_a_stop_token_ends_a_response_and_stays_in_it(qwen3):
    open_ended = qwen3.engine.generate(PROMPTS, SamplingParams(20, 6))
    everything = [token for group in ids(open_ended) for row in group for token in row]
    stops = {2, *sorted(set(everything), key=everything.count)[-20:]}
    groups = qwen3.engine.generate(PROMPTS, SamplingParams(20, 6, stop_token_ids=tuple(stops)))
    endings = set()
    for whole, actual in zip(flat(open_ended), flat(groups), strict=True):
        at = next((i for i, token in enumerate(whole.token_ids) if token in stops), None)
        assert actual.token_ids == whole.token_ids[: None if at is None else at + 1]
        assert len(actual.log_probs) == len(actual.token_ids) == len(actual.versions)
        assert actual.finish_reason == ("length" if at is None else "stop")
        endings.add(at)
    assert {None, 0, 3} <= endings


def test_the_end_of_sequence_of_the_model_ends_a_response(llama):
    groups = llama.engine.generate([[11]], SamplingParams(200, 40, temperature=1.5))
    ended = [each for each in groups[0] if each.finish_reason == "stop"]
    assert ended
    assert all(each.token_ids[-1] == 2 and 2 not in each.token_ids[:-1] for each in ended)
    assert all(len(each.token_ids) == 40 for each in groups[0] if each.finish_reason == "length")


def test_the_token_that_completes_a_stop_string_is_the_last(qwen3):
    decode = qwen3.tokenizer.decode
    open_ended = qwen3.engine.generate(PROMPTS, SamplingParams(60, 16))
    texts = [decode(row) for group in ids(open_ended) for row in group]
    pairs = [text[i : i + 2] for text in texts for i in range(len(text) - 1) if text[i : i + 2].isascii()]
    stop = tuple(sorted(set(pairs), key=pairs.count)[-3:])
    groups = qwen3.engine.generate(PROMPTS, SamplingParams(60, 16, stop=stop))
    reasons = []
    for whole, actual in zip(flat(open_ended), flat(groups), strict=True):
        prefixes = (whole.token_ids[:length] for length in range(1, 17))
        found = next((each for each in prefixes if any(text in decode(each) for text in stop)), None)
        assert actual.token_ids == (found or whole.token_ids)
        assert actual.finish_reason == ("stop" if found or whole.finish_reason == "stop" else "length")
        reasons.append(bool(found))
    assert set(reasons) == {True, False}


def test_prompts_without_ids_are_refused_and_no_prompts_give_nothing(qwen3):
    params = SamplingParams(2, 2)
    assert qwen3.engine.generate([], params) == []
    with pytest.raises(RunError) as caught:
        qwen3.engine.generate([[4], []], params)
    assert str(caught.value) == "vLLM engine: a prompt has no token ids. Fix: give each prompt at least one token"


def test_starting_an_engine_leaves_the_process_as_it_was(qwen3):
    torch.set_num_threads(2)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
