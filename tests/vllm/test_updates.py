"""An update arrives whole, or the engine says what is wrong and samples no more."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import pytest
import torch

from relax_core.errors import RunError
from relax_core.rollout.types import SamplingParams
from relax_core.rollout.vllm.manifest import Manifest
from relax_core.rollout.vllm.update import chunks, fitting, send
from tests.vllm.conftest import PROMPTS

SEND_ALL = "Fix: send every named parameter of a model with the same config, once"
SHAPES = {"a": (2, 3), "b": (4,), "c": (1,)}


def tensors(**shapes):
    return [(name, torch.zeros(shape)) for name, shape in shapes.items()]


def test_chunks_are_bounded_whole_and_in_order():
    weights = [(str(i), torch.zeros(size)) for i, size in enumerate([10, 20, 5, 300, 1, 2, 64])]
    cut = list(chunks(iter(weights), limit=160))
    assert [name for chunk in cut for name, _ in chunk] == [name for name, _ in weights]
    assert [sum(tensor.nbytes for _, tensor in chunk) for chunk in cut] == [140, 1200, 12, 256]
    assert list(chunks(iter([]), limit=1)) == []


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (tensors(a=(2, 3), b=(4,), d=(1,)), "weight 'd' of shape (1,) was given; the model has no such weight left to fill"),
        (tensors(a=(2, 3), b=(5,)), "weight 'b' of shape (5,) was given; the model has one of shape (4,)"),
        (tensors(a=(2, 3)) * 2, "weight 'a' of shape (2, 3) was given; the model has no such weight left to fill"),
        (tensors(b=(4,)), "the update lacks a, c"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(given, problem):
    with pytest.raises(RunError) as caught:
        list(fitting(given, SHAPES))
    assert str(caught.value) == f"vLLM engine: {problem}. {SEND_ALL}"


def test_a_manifest_does_not_depend_on_order_and_sees_every_change():
    base = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4)}

    def digest(weights, values=True):
        manifest = Manifest(values)
        for item in weights.items():
            assert manifest.add(item) is item
        return manifest.count, manifest.digest

    assert digest(base) == digest(dict(reversed(base.items())))
    others = [
        {"a": base["a"]},
        {"a": base["a"], "x": base["b"]},
        {"a": base["a"].reshape(3, 2), "b": base["b"]},
        {"a": base["a"].flip(0), "b": base["b"]},
        {"a": base["a"], "b": base["b"] * (1 + 1e-6)},
    ]
    for other in others:
        assert digest(base) != digest(other)
    assert digest(base, values=False) == digest(others[3], values=False)
    assert digest(base, values=False) != digest(others[2], values=False)


def spoiled(engine, spoil):
    """The engine's calls, with the chunks as `spoil` leaves them."""

    def call(method, *arguments):
        if method == "receive":
            arguments = (spoil(arguments[0]),)
        return engine._call(method, *arguments)

    return call


def noise(chunk):
    return [(name, tensor + 1e-3 if name.endswith("norm.weight") else tensor) for name, tensor in chunk]


@pytest.mark.parametrize(
    ("spoil", "check", "came"),
    [(lambda chunk: chunk[1:], False, "24 came"), (noise, True, "25 came"), (noise, False, None)],
    ids=["a lost weight", "changed values", "changed values, not compared"],
)
def test_what_is_lost_or_changed_on_the_way_is_found(qwen3, spoil, check, came):
    weights = list(qwen3.model.named_parameters())

    def update():
        send(spoiled(qwen3.engine, spoil), weights, 2**40, by_bytes=False, check=check)

    if came is None:
        update()
    else:
        with pytest.raises(RunError, match=rf"^vLLM engine: 25 weights were sent \(\w+\), {came} \(\w+\)\. Fix: "):
            update()
    qwen3.publish()


def test_bytes_in_chunks_bring_the_same_weights(pair):
    pair.change()
    send(pair.engine._call, pair.model.named_parameters(), 2**14, by_bytes=True, check=True)
    assert pair.engine._engine.reset_prefix_cache()
    groups = pair.engine.generate(PROMPTS, SamplingParams(2, 8, temperature=0.7))
    assert pair.gap(PROMPTS, groups, 0.7) < 1e-4
    pair.publish()


def test_a_part_of_a_fused_weight_is_not_enough(qwen3):
    weights = [(name, each) for name, each in qwen3.model.named_parameters() if "k_proj" not in name]
    with pytest.raises(RunError) as caught:
        send(qwen3.engine._call, weights, 2**40, by_bytes=False, check=False)
    layers = "model.layers.0.self_attn.qkv_proj, model.layers.1.self_attn.qkv_proj"
    assert str(caught.value) == f"vLLM engine: the update left as they were {layers}. {SEND_ALL}"
    qwen3.publish()


def test_responses_that_are_under_way_go_on_with_new_weights(pair, monkeypatch):
    """Asked for before an update and in the middle of one: each token has the version that sampled it, and its log-prob."""
    engine, before = pair.engine, pair.engine.version
    monkeypatch.setattr(engine, "settings", replace(engine.settings, in_flight=True))
    pair.change()
    pair.version = before + 1
    weights = [(name, tensor.detach()) for name, tensor in pair.model.named_parameters()]
    params, asked = SamplingParams(n=4, max_new_tokens=64, seed=3), Event()

    def trickle():
        yield weights[0]
        asked.wait(20)
        yield from weights[1:]

    with ThreadPoolExecutor() as threads:
        early = threads.submit(engine.generate, PROMPTS, params)
        while not engine._requests.any_open:
            time.sleep(0.001)
        update = threads.submit(engine.update_weights, trickle(), before + 1)
        time.sleep(0.2)
        late = threads.submit(engine.generate, PROMPTS, params, range(100, 100 + len(PROMPTS)))
        time.sleep(0.2)
        asked.set()
        update.result(60)
        first, second = early.result(60), late.result(60)
    assert {version for group in second for each in group for version in each.versions} == {before + 1}
    versions = [each.versions for group in first for each in group]
    assert all(each == sorted(each) and set(each) <= {before, before + 1} for each in versions)
    assert pair.gap(PROMPTS, second, 1.0) < 1e-4


def test_many_threads_get_what_one_gets(pair):
    """Calls begin and end at all times of a step; each has the samples that it has alone."""
    params = SamplingParams(n=2, max_new_tokens=12, seed=5, stop_token_ids=tuple(range(4, 60)))
    alone = pair.engine.generate(PROMPTS * 8, params)
    with ThreadPoolExecutor(16) as threads:
        calls = [threads.submit(pair.engine.generate, [prompt], params, [i]) for i, prompt in enumerate(PROMPTS * 8)]
        together = [call.result(60)[0] for call in calls]
    assert [[each.token_ids for each in group] for group in together] == [
        [each.token_ids for each in group] for group in alone
    ]


def test_a_thread_whose_responses_have_ended_takes_no_step_beside_another(pair):
    requests = pair.engine._requests
    with requests.between_steps():
        assert not requests._take_turn({"ended": None})
