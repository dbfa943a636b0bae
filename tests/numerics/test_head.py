from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
)

from relax_core.errors import LoadError
from relax_core.numerics import sizes
from relax_core.numerics.head import check_head, evaluating, head_of
from relax_core.numerics.log_probs import token_log_probs

TOKENS, WIDTH, VOCABULARY = 13, 8, 37
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def operands(dtype=torch.float64, tokens=TOKENS):
    generator = torch.Generator().manual_seed(3)
    hidden, weight, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in ((tokens, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    )
    return hidden, weight, bias, torch.randint(0, 30, (tokens,), generator=generator)


def plain(hidden, weight, bias, token_ids, temperature, vocabulary):
    """The whole logits at once, written as the definition."""
    logits = hidden @ weight.T + (0 if bias is None else bias)
    every = torch.log_softmax(logits[:, :vocabulary] / temperature, dim=-1)
    return every[torch.arange(len(token_ids)), token_ids], -(every.exp() * every).sum(-1)


@pytest.mark.parametrize("chunk_tokens", [1, 4, 13, 100, None])
@pytest.mark.parametrize(
    ("temperature", "vocabulary", "with_bias"), [(1.0, None, True), (0.7, 31, True), (1.3, 30, False)]
)
def test_values_and_gradients_are_those_of_the_whole_log_softmax(chunk_tokens, temperature, vocabulary, with_bias):
    hidden, weight, bias, token_ids = operands()
    inputs = [hidden, weight, bias] if with_bias else [hidden, weight]
    bias = bias if with_bias else None
    options = {"temperature": temperature, "vocabulary": vocabulary}
    upstream = torch.randn(2, TOKENS, dtype=torch.float64, generator=torch.Generator().manual_seed(5))

    values = token_log_probs(hidden, weight, bias, token_ids, entropy=True, chunk_tokens=chunk_tokens, **options)
    expected = plain(hidden, weight, bias, token_ids, **options)
    gradients = torch.autograd.grad((torch.stack(values) * upstream).sum(), inputs)
    expected_gradients = torch.autograd.grad((torch.stack(expected) * upstream).sum(), inputs)

    for actual, wanted in zip([*values, *gradients], [*expected, *expected_gradients], strict=True):
        assert actual.dtype == torch.float64
        torch.testing.assert_close(actual, wanted, rtol=0, atol=1e-12)


def test_temperature_divides_the_logits():
    log_probs, entropy = token_log_probs(
        torch.ones(1, 1), torch.tensor([[2.0], [0.0]]), None, torch.tensor([0]), temperature=0.6
    )
    assert log_probs.item() == pytest.approx(-0.03505, abs=5e-6)
    assert entropy is None


def test_entropy_of_equal_logits_is_the_logarithm_of_their_number():
    ids = torch.tensor([0, 1])
    _, entropy = token_log_probs(torch.zeros(2, 3), torch.randn(5, 3), None, ids, entropy=True, vocabulary=4)
    assert entropy.tolist() == pytest.approx([math.log(4)] * 2)


def test_no_tokens_keep_the_graph_alive():
    hidden, weight, bias, token_ids = operands(tokens=0)
    log_probs, entropy = token_log_probs(hidden, weight, bias, token_ids, entropy=True)
    assert log_probs.shape == entropy.shape == (0,)
    (log_probs.sum() + entropy.sum()).backward()
    assert weight.grad.abs().sum() == 0
    assert hidden.grad.shape == (0, WIDTH)


def test_bfloat16_products_are_normalised_in_float32():
    hidden, weight, bias, token_ids = operands(torch.bfloat16)
    log_probs, _ = token_log_probs(hidden, weight, bias, token_ids)
    logits = torch.nn.functional.linear(hidden, weight, bias)
    assert logits.dtype == torch.bfloat16
    assert log_probs.dtype == torch.float32
    assert torch.equal(log_probs, logits.float().log_softmax(-1).gather(-1, token_ids[:, None])[:, 0])
    log_probs.sum().backward()
    assert weight.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("kept", [0, 4 * VOCABULARY, 9 * VOCABULARY, 10**6])
def test_what_is_kept_for_the_backward_changes_no_gradient(kept, monkeypatch):
    monkeypatch.setattr(sizes, "KEPT_LOGITS", kept)
    hidden, weight, bias, token_ids = operands()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        log_probs, entropy = token_log_probs(hidden, weight, bias, token_ids, entropy=True, chunk_tokens=4)
    gradients = torch.autograd.grad((log_probs * token_ids + entropy).sum(), [hidden, weight, bias])
    values, entropies = plain(hidden, weight, bias, token_ids, 1.0, None)
    expected = torch.autograd.grad((values * token_ids + entropies).sum(), [hidden, weight, bias])
    torch.testing.assert_close(gradients, expected, rtol=0, atol=1e-12)
    assert sum(t.numel() for t in saved if t.shape[-1] == VOCABULARY and t.dim() == 2) == min(
        kept, TOKENS * VOCABULARY
    ) // (4 * VOCABULARY) * (4 * VOCABULARY) + (VOCABULARY if kept > TOKENS * VOCABULARY else 0)


@pytest.mark.parametrize("kept", [0, 10**6])
def test_gradients_of_several_ids_a_token_without_entropy(kept, monkeypatch):
    monkeypatch.setattr(sizes, "KEPT_LOGITS", kept)
    hidden, weight, bias, token_ids = operands()
    ids = torch.stack([token_ids, (token_ids + 5) % 30, token_ids], dim=1)  # one of them twice
    factors = torch.randn(TOKENS, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    log_probs, _ = token_log_probs(hidden, weight, bias, ids, temperature=0.7, chunk_tokens=4)
    expected = ((hidden @ weight.T + bias) / 0.7).log_softmax(-1).gather(-1, ids)
    torch.testing.assert_close(log_probs, expected, rtol=0, atol=1e-12)
    mine = torch.autograd.grad((log_probs * factors).sum(), [hidden, weight, bias])
    theirs = torch.autograd.grad((expected * factors).sum(), [hidden, weight, bias])
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("given", [("hidden",), ("weight",), ("hidden", "bias")])
def test_only_what_is_trained_has_a_gradient(given):
    values = dict(zip(("hidden", "weight", "bias"), operands()[:3], strict=True))
    for name, value in values.items():
        value.requires_grad_(name in given)
    token_log_probs(*values.values(), operands()[3])[0].sum().backward()
    assert [name for name, value in values.items() if value.grad is not None] == list(given)


def test_autocast_reaches_the_gradients():
    hidden, weight, bias, token_ids = operands(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        log_probs, _ = token_log_probs(hidden, weight, bias, token_ids)
    lower = [each.detach().bfloat16().requires_grad_() for each in (hidden, weight, bias)]
    expected, _ = token_log_probs(*lower, token_ids)
    assert torch.equal(log_probs, expected)
    mine = torch.autograd.grad(log_probs.sum(), [hidden, weight, bias])
    theirs = torch.autograd.grad(expected.sum(), lower)
    assert [each.dtype for each in mine] == [torch.float32] * 3
    torch.testing.assert_close(mine, [each.float() for each in theirs], rtol=0, atol=0)


class RowsOverTheVocabulary(TorchDispatchMode):
    """The number of rows of every tensor with the vocabulary as its last dimension that an operation gave."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.rows += [t.numel() // VOCABULARY for t in tensors if t.dim() > 1 and t.shape[-1] == VOCABULARY]
        return result


@pytest.mark.parametrize("given", [True, False])
def test_forward_and_backward_hold_the_logits_of_one_chunk(given, monkeypatch):
    monkeypatch.setattr(sizes, "CHUNK_LOGITS", 16 * VOCABULARY + 5)
    monkeypatch.setattr(sizes, "CHUNK_TOKENS", 1)
    monkeypatch.setattr(sizes, "KEPT_LOGITS", 0)
    hidden, weight, bias, token_ids = operands(tokens=100)
    saved = []
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.shape) or t, lambda t: t),
        RowsOverTheVocabulary() as forward,
    ):
        log_probs, entropy = token_log_probs(
            hidden, weight, bias, token_ids, entropy=True, chunk_tokens=16 if given else None
        )
    with RowsOverTheVocabulary() as backward:
        (log_probs + entropy).sum().backward()
    assert max(forward.rows) == max(backward.rows) == 16
    assert VOCABULARY not in [shape[-1] for shape in saved if len(shape) > 1]


MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SIZES)),
    "tied": (LlamaForCausalLM, LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "bias": (PhiForCausalLM, PhiConfig(**SIZES)),
    "soft cap": (Gemma2ForCausalLM, Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=0.5)),
    "scale": (CohereForCausalLM, CohereConfig(**SIZES, logit_scale=0.25)),
    "divisor": (GraniteForCausalLM, GraniteConfig(**SIZES, logits_scaling=3.0)),
}


def build(family, config):
    torch.manual_seed(1)
    model = family(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_head_of_gives_what_the_model_adds_to_its_hidden_states(name):
    model = build(*MODELS[name]).eval()
    check_head(model)
    token_ids = torch.randint(0, VOCABULARY, (1, 9), generator=torch.Generator().manual_seed(0))
    weight, bias, transform = head_of(model)
    with torch.no_grad():
        hidden = model.base_model(input_ids=token_ids).last_hidden_state[0, :-1]
        actual, _ = token_log_probs(hidden, weight, bias, token_ids[0, 1:], logit_transform=transform)
        every = model(input_ids=token_ids).logits[0, :-1].log_softmax(-1)
    torch.testing.assert_close(actual, every.gather(-1, token_ids[0, 1:, None])[:, 0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["bias", "soft cap", "scale", "divisor"])
def test_what_the_model_adds_matters_in_these_models(name):
    model = build(*MODELS[name])
    _, bias, transform = head_of(model)
    assert transform is not None if name != "bias" else bias.abs().sum() > 0


def test_check_head_passes_a_half_precision_model():
    check_head(build(*MODELS["soft cap"]).bfloat16())


class Louder(LlamaForCausalLM):
    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * 1.1
        return output


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_check_head_refuses_a_forward_that_does_more(dtype):
    model = build(Louder, LlamaConfig(**SIZES)).to(dtype).train()
    with pytest.raises(LoadError) as caught:
        check_head(model)
    assert str(caught.value) == (
        "Louder: its logits are not its output embedding applied to its last hidden states. Fix: use a model that does "
        "no more to its logits than its config declares with final_logit_softcapping, logit_scale or logits_scaling"
    )
    assert all(module.training for module in model.modules())


def test_evaluating_restores_the_mode_of_each_submodule():
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Sequential(torch.nn.Dropout()))
    model[1].eval()
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == [True, True, False, False]
