from __future__ import annotations

import math

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from relax_core.errors import RunError
from relax_core.numerics.head import vocabulary_limit
from relax_core.rollout.hf import HFSampler, draw, truncate
from relax_core.rollout.types import SamplingParams

VOCABULARY = 320
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
PROMPTS = [[7, 80, 9], [11], [5, 6, 7, 8, 9, 10, 200, 201, 202]]


def build_tokenizer(alphabet=BYTES, **special):
    ids = {token: index for index, token in enumerate(["<pad>", "<bos>", "<eos>", "<unk>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", **special)


def build_model(kind="qwen3", vocabulary=VOCABULARY, scale=0.25, eos=None):
    config = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "bos_token_id": 1,
        "eos_token_id": eos,
        "pad_token_id": 0,
    }
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**config)) if kind == "qwen3" else LlamaForCausalLM(LlamaConfig(**config))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, scale)
    return model


@pytest.fixture(scope="module")
def model():
    return build_model()


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


@pytest.fixture
def sampler(model, tokenizer):
    return HFSampler(model, tokenizer)


@torch.no_grad()
def full_log_probs(model, prompt, response, temperature=1.0, known=260):
    """[T, known] after each position before a response token, from one forward pass without padding or cache."""
    logits = model.eval()(input_ids=torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1, :known]
    return (logits.double() / temperature).log_softmax(-1)


def pairs(prompts, groups):
    return [(prompt, completion) for prompt, group in zip(prompts, groups, strict=True) for completion in group]


def ids(groups):
    return [[completion.token_ids for completion in group] for group in groups]


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_those_of_a_full_forward_pass(kind, temperature, tokenizer):
    model = build_model(kind)
    params = SamplingParams(n=3, max_new_tokens=8, temperature=temperature, stop_token_ids=tuple(range(4, 12)))
    groups = HFSampler(model, tokenizer).generate(PROMPTS, params)
    assert [len(group) for group in groups] == [3, 3, 3]
    for prompt, completion in pairs(PROMPTS, groups):
        every = full_log_probs(model, prompt, completion.token_ids, temperature)
        expected = every[torch.arange(len(every)), completion.token_ids]
        assert completion.log_probs == pytest.approx(expected.tolist(), abs=1e-5)
        assert max(completion.log_probs) <= 0


def test_a_low_temperature_takes_the_likeliest_token(sampler, model):
    groups = sampler.generate(PROMPTS, SamplingParams(n=2, max_new_tokens=6, temperature=1e-4))
    for prompt, completion in pairs(PROMPTS, groups):
        assert completion.token_ids == full_log_probs(model, prompt, completion.token_ids).argmax(-1).tolist()


@pytest.mark.parametrize("truncation", [{}, {"top_k": 5, "top_p": 0.5}])
def test_temperature_0_takes_the_likeliest_token_with_its_untempered_log_prob(sampler, model, truncation):
    params = SamplingParams(n=2, max_new_tokens=6, temperature=0.0, **truncation)
    groups = sampler.generate(PROMPTS, params)
    for prompt, completion in pairs(PROMPTS, groups):
        best = full_log_probs(model, prompt, completion.token_ids).max(-1)
        assert completion.token_ids == best.indices.tolist()
        assert completion.log_probs == pytest.approx(best.values.tolist(), abs=1e-5)
    assert [first == second for first, second in groups] == [True, True, True]


def test_a_greedy_draw_by_hand():
    logits = torch.tensor([[0.1, 0.2, 0.7], [0.4, 0.2, 0.4]]).log()
    chosen, values = draw(logits, torch.tensor([0.0, 0.99], dtype=torch.float64), SamplingParams(1, 1, temperature=0))
    assert chosen.tolist() == [2, 0]
    assert values.tolist() == pytest.approx([math.log(0.7), math.log(0.4)])


def test_the_seed_decides_and_the_global_generator_is_left_alone(sampler):
    before = torch.get_rng_state()
    first, again, other = (
        sampler.generate(PROMPTS, SamplingParams(n=2, max_new_tokens=6, seed=seed)) for seed in (4, 4, 5)
    )
    assert first == again
    assert ids(first) != ids(other)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("max_batch", [1, 4, 7])
def test_rounds_do_not_change_the_samples(max_batch, model, tokenizer, sampler):
    params = SamplingParams(n=3, max_new_tokens=6, stop_token_ids=tuple(range(4, 12)))
    rows = []
    handle = model.register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    rounds = HFSampler(model, tokenizer, max_batch=max_batch).generate(PROMPTS, params)
    handle.remove()
    assert max(rows) == max_batch
    assert ids(rounds) == ids(sampler.generate(PROMPTS, params))


def test_samples_of_a_prompt_do_not_depend_on_what_comes_after_it(sampler):
    params = SamplingParams(n=4, max_new_tokens=6, stop_token_ids=tuple(range(4, 12)))
    assert ids(sampler.generate(PROMPTS[:1], params)) == ids(sampler.generate(PROMPTS, params))[:1]


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, 0), (0.8, 40)])
def test_frequencies_of_first_tokens_match_the_distribution(sampler, model, temperature, top_k):
    samples = 6000
    params = SamplingParams(n=samples, max_new_tokens=1, temperature=temperature, top_k=top_k, seed=1)
    (group,) = sampler.generate(PROMPTS[:1], params)
    counts = torch.bincount(torch.tensor([c.token_ids[0] for c in group]), minlength=260).double()
    expected = full_log_probs(model, PROMPTS[0], [0], temperature)[0].exp()
    if top_k:
        expected[expected < expected.sort(descending=True).values[top_k - 1]] = 0
    expected = samples * expected / expected.sum()
    assert counts[expected == 0].sum() == 0
    likely = expected >= 5
    observed = torch.cat([counts[likely], counts[~likely].sum()[None]])
    wanted = torch.cat([expected[likely], expected[~likely].sum()[None].clamp(min=1e-9)])
    statistic, freedom = ((observed - wanted) ** 2 / wanted).sum().item(), int(likely.sum())
    assert freedom > 20
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)


def test_draw_inverts_the_distribution_function():
    log_probs = torch.tensor([[0.1, 0.2, 0.7]]).log()
    uniforms = torch.tensor([0.0, 0.0999, 0.1001, 0.2999, 0.3001, 1 - 2**-53], dtype=torch.float64)
    chosen, values = draw(log_probs.expand(6, 3), uniforms, SamplingParams(n=1, max_new_tokens=1))
    assert chosen.tolist() == [0, 0, 1, 1, 2, 2]
    assert values.tolist() == pytest.approx([math.log(p) for p in (0.1, 0.1, 0.2, 0.2, 0.7, 0.7)])


@pytest.mark.parametrize("vocabulary", [5, 128, 300, 1024])
def test_draw_inverts_any_distribution_function(vocabulary):
    generator = torch.Generator().manual_seed(vocabulary)
    logits = 8 * torch.randn(400, vocabulary, generator=generator)
    logits[:, torch.rand(vocabulary, generator=generator) < 0.4] = -torch.inf
    logits[:, 0] = 0.0
    uniforms = torch.rand(400, generator=generator, dtype=torch.float64)
    uniforms[:100], uniforms[100:200] = 0.0, 1 - 2**-53
    chosen, values = draw(logits, uniforms, SamplingParams(n=1, max_new_tokens=1))
    probs = logits.double().softmax(-1)
    mass, until = probs.gather(-1, chosen[:, None])[:, 0], probs.cumsum(-1).gather(-1, chosen[:, None])[:, 0]
    assert (mass > 0).all()
    assert (until + 1e-6 >= uniforms).all()
    assert (until - mass - 1e-6 <= uniforms).all()
    torch.testing.assert_close(values.double(), mass.log(), rtol=0, atol=1e-5)


def test_draw_never_gives_a_token_without_mass():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]).expand(4, 5)
    uniforms = torch.tensor([0.0, 0.5 - 1e-9, 0.5, 1 - 2**-53], dtype=torch.float64)
    chosen, values = draw(logits, uniforms, SamplingParams(n=1, max_new_tokens=1))
    assert chosen.tolist() == [1, 1, 3, 3]
    assert values.tolist() == pytest.approx([-math.log(2)] * 4)


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"),
    [
        (0, 1.0, [0, 1, 2, 3]),
        (3, 1.0, [0, 1, 3]),
        (9, 1.0, [0, 1, 2, 3]),
        (0, 0.7, [1, 3]),
        (0, 0.45, [1]),
        (0, 0.96, [0, 1, 2, 3]),
        (2, 0.6, [1]),  # 0.5 of the 0.8 that top-k left is 0.625 already
        (3, 0.6, [1, 3]),
    ],
)
def test_truncation_by_hand(top_k, top_p, kept):
    logits = torch.tensor([[0.15, 0.5, 0.05, 0.3]]).log()
    truncated = truncate(logits, top_k, top_p)
    assert truncated.isfinite()[0].nonzero().flatten().tolist() == kept
    assert torch.equal(truncated[:, kept], logits[:, kept])


def nucleus(log_probs, top_k, top_p):
    """The tokens of top-k and then top-p, by walking down the list, with the log of their renormalised probability."""
    best = sorted(range(len(log_probs)), key=lambda token: -log_probs[token])[:top_k]
    total, mass, kept = sum(math.exp(log_probs[token]) for token in best), 0.0, []
    for token in best:
        if mass >= top_p * total:
            break
        kept.append(token)
        mass += math.exp(log_probs[token])
    return {token: log_probs[token] - math.log(mass) for token in kept}


@pytest.mark.parametrize(("top_k", "top_p"), [(5, 1.0), (260, 0.5), (12, 0.7)])
def test_samples_stay_in_the_nucleus_and_log_probs_are_renormalised(sampler, model, top_k, top_p):
    params = SamplingParams(n=8, max_new_tokens=6, temperature=0.9, top_k=top_k, top_p=top_p)
    groups = sampler.generate(PROMPTS, params)
    for prompt, completion in pairs(PROMPTS, groups):
        every = full_log_probs(model, prompt, completion.token_ids, 0.9).tolist()
        for token, value, row in zip(completion.token_ids, completion.log_probs, every, strict=True):
            assert value == pytest.approx(nucleus(row, top_k, top_p)[token], abs=1e-5)


@pytest.mark.parametrize("source", ["params", "tokenizer", "generation config", "one id in the generation config"])
def test_a_stop_token_ends_a_response_and_stays_in_it(source, sampler, model, tokenizer, monkeypatch):
    open_ended = SamplingParams(n=40, max_new_tokens=5)
    unstopped = sampler.generate(PROMPTS, open_ended)
    everything = [token for _, completion in pairs(PROMPTS, unstopped) for token in completion.token_ids]
    frequent = sorted(set(everything), key=everything.count)[-20:]
    stops, params = frequent, open_ended
    if source == "params":
        params = SamplingParams(n=40, max_new_tokens=5, stop_token_ids=tuple(frequent))
    elif source == "tokenizer":
        stops, tokenizer = frequent[-1:], build_tokenizer(eos_token=tokenizer.convert_ids_to_tokens(frequent[-1]))
    elif source == "generation config":
        monkeypatch.setattr(model.generation_config, "eos_token_id", frequent)
    else:
        stops = frequent[-1:]
        monkeypatch.setattr(model.generation_config, "eos_token_id", frequent[-1])

    groups = HFSampler(model, tokenizer).generate(PROMPTS, params)

    endings = set()
    for (_, whole), (_, actual) in zip(pairs(PROMPTS, unstopped), pairs(PROMPTS, groups), strict=True):
        assert (len(whole.token_ids), whole.finish_reason) == (5, "length")
        at = next((i for i, token in enumerate(whole.token_ids) if token in stops), None)
        assert actual.token_ids == whole.token_ids[: None if at is None else at + 1]
        assert len(actual.log_probs) == len(actual.token_ids)
        assert actual.finish_reason == ("length" if at is None else "stop")
        endings.add(at)
    assert {None, 0, 4} <= endings


E_ACUTE = ["Ã", "©"]  # the two bytes of é


@pytest.mark.parametrize(
    ("alphabet", "decoder", "stop"),
    [
        (["a", "b", "c"], decoders.ByteLevel(), ("ab",)),
        (["a", "b", "c", *E_ACUTE], decoders.ByteLevel(), ("cab", "é")),
        (["a", *E_ACUTE], decoders.ByteLevel(), ("aaa<bos>", "aéa")),
        (E_ACUTE, decoders.ByteLevel(), ("éé",)),
        (["▁", "a", "b"], decoders.Metaspace(), (" b",)),  # decoding drops a space at the start
    ],
)
def test_a_stop_string_ends_a_response(alphabet, decoder, stop, monkeypatch):
    tokenizer = build_tokenizer(alphabet)
    tokenizer.backend_tokenizer.decoder = decoder
    sampler = HFSampler(build_model(scale=0.1), tokenizer)
    unstopped = sampler.generate(PROMPTS, SamplingParams(n=200, max_new_tokens=12))
    decode, tails = tokenizer.batch_decode, []
    monkeypatch.setattr(
        tokenizer, "batch_decode", lambda rows, **options: tails.extend(rows) or decode(rows, **options)
    )
    groups = sampler.generate(PROMPTS, SamplingParams(n=200, max_new_tokens=12, stop=stop))
    reasons = set()
    for (_, whole), (_, actual) in zip(pairs(PROMPTS, unstopped), pairs(PROMPTS, groups), strict=True):
        prefixes = (whole.token_ids[:length] for length in range(1, 13))
        found = next((prefix for prefix in prefixes if any(text in tokenizer.decode(prefix) for text in stop)), None)
        assert actual.token_ids == (found or whole.token_ids)
        assert actual.finish_reason == ("stop" if found else "length")
        reasons.add(actual.finish_reason)
    assert reasons == {"stop", "length"}
    assert max(map(len, tails)) <= max(len(text.encode()) for text in stop) + 1


def test_nothing_is_decoded_without_stop_strings(sampler, tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "batch_decode", None)
    assert len(sampler.generate(PROMPTS, SamplingParams(n=1, max_new_tokens=2))) == 3


def test_a_prompt_is_prefilled_once_and_a_finished_row_leaves_the_batch(model, tokenizer):
    shapes = []
    handle = model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    params = SamplingParams(n=8, max_new_tokens=6, stop_token_ids=tuple(range(4, 100)))
    groups = HFSampler(model, tokenizer).generate([*PROMPTS, PROMPTS[0]], params)
    handle.remove()
    lengths = [len(completion.token_ids) for group in groups for completion in group]
    still_going = [sum(length > step for length in lengths) for step in range(1, max(lengths))]
    assert shapes == [(3, 9), *((rows, 1) for rows in still_going)]
    assert still_going[-1] < still_going[0] < 32


def test_sampling_is_in_evaluation_mode_without_gradients_and_modes_return(tokenizer):
    model = build_model().train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    seen = []
    model.lm_head.register_forward_hook(lambda *_: seen.append((torch.is_grad_enabled(), model.model.training)))
    sampler = HFSampler(model, tokenizer)
    sampler.generate(PROMPTS, SamplingParams(n=1, max_new_tokens=2))
    assert set(seen) == {(False, False)}
    assert [module.training for module in model.modules()] == modes
    model(input_ids=torch.tensor([[4, 5, 6]])).logits.sum().backward()
    assert model.lm_head.weight.grad is not None


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_logits_that_are_not_finite_are_an_error_and_modes_return(tokenizer, temperature):
    model = build_model().train()
    model.lm_head.weight.data.fill_(torch.nan)
    with pytest.raises(RunError) as caught:
        HFSampler(model, tokenizer).generate(PROMPTS, SamplingParams(n=1, max_new_tokens=2, temperature=temperature))
    assert str(caught.value) == ("HFSampler: the model's logits are not finite. Fix: look for a diverged training step")
    assert model.training


def test_ids_past_the_tokenizer_are_never_sampled(tokenizer):
    model = build_model()
    model.lm_head.weight.data[:260] = 0
    assert full_log_probs(model, PROMPTS[0], [0], known=VOCABULARY)[0, 260:].exp().sum() > 0.3
    (group,) = HFSampler(model, tokenizer).generate(PROMPTS[:1], SamplingParams(n=500, max_new_tokens=1))
    assert max(completion.token_ids[0] for completion in group) < 260
    assert {round(completion.log_probs[0], 4) for completion in group} == {round(-math.log(260), 4)}


@pytest.mark.parametrize(("vocabulary", "limit"), [(320, 260), (261, 260), (260, None), (250, None)])
def test_vocabulary_limit(vocabulary, limit, tokenizer):
    assert vocabulary_limit(build_model(vocabulary=vocabulary), tokenizer) == limit


def test_update_weights_stamps_the_version_and_copies_what_it_is_given(tokenizer):
    model, other = build_model(), build_model(scale=0.5)
    sampler = HFSampler(model, tokenizer, version=3)
    params = SamplingParams(n=1, max_new_tokens=4)
    assert {v for group in sampler.generate(PROMPTS, params) for c in group for v in c.versions} == {3}
    weights = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    sampler.update_weights([], 4)
    assert sampler.generate(PROMPTS, params)[0][0].versions == [4, 4, 4, 4]
    sampler.update_weights(other.named_parameters(), 5)
    assert {name: parameter.data_ptr() for name, parameter in model.named_parameters()} == weights
    assert sampler.generate(PROMPTS, params) == HFSampler(other, tokenizer, version=5).generate(PROMPTS, params)


@pytest.mark.parametrize(
    ("name", "shape", "has"),
    [("model.norm.bias", (32,), "no such parameter"), ("model.norm.weight", (1,), "one of shape (32,)")],
)
def test_weights_that_do_not_fit_are_refused(name, shape, has, tokenizer):
    sampler = HFSampler(build_model(), tokenizer)
    with pytest.raises(RunError) as caught:
        sampler.update_weights([(name, torch.zeros(shape))], 1)
    assert str(caught.value) == (
        f"HFSampler: weight '{name}' of shape {shape} was given; the model has {has}. "
        "Fix: send the named parameters of a model with the same config"
    )
    assert sampler.version == 0


def test_prompts_without_ids_are_refused_and_no_prompts_give_nothing(sampler):
    params = SamplingParams(n=2, max_new_tokens=2)
    assert sampler.generate([], params) == []
    with pytest.raises(RunError) as caught:
        sampler.generate([[4], []], params)
    assert str(caught.value) == "HFSampler: a prompt has no token ids. Fix: give each prompt at least one token"
