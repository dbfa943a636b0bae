"""Responses token by token: texts that join to the whole, and the parts that the policy did not write."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from examples.tiny_model import byte_tokenizer
from relax_core.orchestration.segments import segments_of, texts_of
from relax_core.rollout.types import Completion

BYTES = byte_tokenizer()
CHARACTERS = BYTES.encode("中é👧a <eos>")


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("no<eos>", ["n", "o", "<eos>"]),
        ("é中!", ["é", "", "中", "", "", "!"]),
        ("a👧", ["a", "👧", "", "", ""]),
    ],
)
def test_a_character_stands_at_its_first_token(text, texts):
    assert texts_of(BYTES.encode(text), BYTES) == texts


def test_the_half_of_a_character_at_the_end_is_shown_as_unknown():
    assert texts_of(BYTES.encode("a👧")[:-1], BYTES) == ["a", "�", "", ""]


@settings(deadline=None, max_examples=300)
@given(st.lists(st.integers(0, len(BYTES) - 1) | st.sampled_from(CHARACTERS), max_size=40))
def test_joined_they_are_the_text_whatever_the_bytes(token_ids):
    texts = texts_of(token_ids, BYTES)
    assert len(texts) == len(token_ids)
    assert "".join(texts) == BYTES.decode(token_ids)


def test_a_space_that_a_token_has_only_behind_another_one_is_kept():
    vocabulary = {"<unk>": 0, "▁the": 1, "▁cat": 2, "s": 3}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    assert wrapped.decode([2]) == "cat"
    assert texts_of([1, 2, 3, 1], wrapped) == ["the", " cat", "s", " the"]


def completion(text, **fields):
    token_ids = BYTES.encode(text)
    return Completion(token_ids, [-1.0] * len(token_ids), "stop", [0] * len(token_ids), **fields)


def test_what_the_policy_did_not_write_is_a_segment_of_its_own():
    policy, mask = [True, True, False, False, True], [True, False, False, False, True]
    found = segments_of(completion("ab12c", raw_mask=policy), mask, [1 / 3, 0.5, 0.0, 0.0, -2.0], BYTES)
    assert found == [
        {"kind": "policy", "tool": None, "tokens": ["a", "b"], "mask": [1, 0], "advantages": [0.333333, 0.5]},
        {"kind": "observation", "tool": None, "tokens": ["1", "2"], "mask": [0, 0], "advantages": [0.0, 0.0]},
        {"kind": "policy", "tool": None, "tokens": ["c"], "mask": [1], "advantages": [-2.0]},
    ]


def test_a_response_of_one_turn_is_one_segment_and_an_empty_one_has_none():
    (found,) = segments_of(completion("ab"), [True] * 2, None, BYTES)
    assert (found["tokens"], found["advantages"]) == (["a", "b"], None)
    assert segments_of(completion(""), [], [], BYTES) == []


def test_each_observation_names_its_tool_and_a_new_context_stands_where_it_was_read_from():
    seen = {"observations": [(1, "add"), (2, ""), (4, "find")], "resets": [(3, BYTES.encode("é?")), (5, [65])]}
    found = segments_of(completion("a12b3", raw_mask=[True, False, False, True, False], **seen), [1] * 5, None, BYTES)
    assert [(each["kind"], each["tool"], each["tokens"], each["mask"]) for each in found] == [
        ("policy", None, ["a"], [1]),
        ("observation", "add", ["1"], [1]),
        ("observation", None, ["2"], [1]),
        ("context", None, ["é", "", "?"], [0, 0, 0]),
        ("policy", None, ["b"], [1]),
        ("observation", "find", ["3"], [1]),
    ]


def test_a_secret_is_not_hidden_between_tokens(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    text = "so hf_0123456789"
    assert segments_of(completion(text), [True] * len(text), None, BYTES) == []
    assert segments_of(completion("so", resets=[(1, BYTES.encode(text))]), [True] * 2, None, BYTES) == []
