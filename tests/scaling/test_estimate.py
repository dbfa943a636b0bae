"""Memory and speed of small runs, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relax_core.config import RunConfig
from relax_core.numerics.sizes import CHUNK_LOGITS, KEPT_LOGITS
from relax_core.scaling.activations import Micro, activations
from relax_core.scaling.devices import Assumptions, Device
from relax_core.scaling.estimate import Estimate, estimate
from relax_core.scaling.shape import Shape
from relax_core.topology import Topology

SHAPE = Shape(layers=4, hidden=8, heads=4, kv_heads=2, head_dim=2, ffn=16, vocabulary=32, tied=False)
PARAMETERS = 4 * (2 * 8 * (8 + 4) + 3 * 8 * 16 + 2 * 8) + 2 * 32 * 8 + 8
GPU = Device("toy", 10**6, 1e6, 1e5, "made up")
CPU = Device("cpu", None, 1e6, 1e5, "made up")
NOTHING = Assumptions(training=1, prefill=1, decoding=1, link=1e4, process=0, engine=0)
MEGATRON = {"engine": "megatron", "megatron_args": {"use_distributed_optimizer": True}}
MICRO = Micro(tokens=10, responses=6, itemsize=4, checkpointing=False)


def told(device=GPU, roles=("actor", "rollout"), shapes=None, assumed=NOTHING, **sections) -> Estimate:
    run = RunConfig.model_validate(
        {
            "model": {"path": "m"},
            "data": {"task": "none", "max_prompt_tokens": 6},
            **sections,
            "rollout": {
                "rollout_batch_size": 2,
                "n_samples_per_prompt": 1,
                "max_new_tokens": 4,
                **sections.get("rollout", {}),
            },
        }
    )
    roles = frozenset(roles)
    return estimate(Topology(run, roles), dict.fromkeys(roles - {"rollout"}, SHAPE) | (shapes or {}), device, assumed)


def held(estimate: Estimate, number: int = 0) -> dict[str, int]:
    return {kind: size for kind, size in estimate.loads[number].held.items() if size and kind != "activations"}


# -- activations ----------------------------------------------------------------------------------------------------------


def test_a_layer_of_the_embedded_engine_in_float32():
    layers = 4 * 4 * 10 * (6 * 8 + 2 * (8 + 4) + 4 * 16)
    last_norm = 4 * 10 * 3 * 8
    # Two buffers for the chunk that there is, its logits kept, the gradient of their weight.
    head = 2 * 4 * 6 * 32 + 4 * 6 * 32 + 4 * 32 * 8
    assert activations(SHAPE, MICRO) == layers + last_norm + head


def test_a_layer_under_autocast_holds_bfloat16_copies_of_its_weights():
    layer = 10 * (26 * 8 + 4 * (8 + 4) + 8 * 16) + 2 * (2 * 8 * 12 + 3 * 8 * 16)
    head = 2 * (32 + 6) * 8 + 3 * 4 * 6 * 32 + 4 * 32 * 8
    assert activations(SHAPE, replace(MICRO, itemsize=2)) == 4 * layer + 4 * 10 * 3 * 8 + head


def test_recomputing_keeps_what_layers_are_given_and_one_layer():
    layer = 4 * 10 * (6 * 8 + 2 * (8 + 4) + 4 * 16)
    micro = replace(MICRO, checkpointing=True)
    assert activations(SHAPE, micro) == (4 + 3) * 4 * 10 * 8 + layer


def test_a_shared_row_repeats_keys_and_keeps_its_mask():
    more = activations(SHAPE, replace(MICRO, pairs=100)) - activations(SHAPE, MICRO)
    assert more == 4 * 4 * (10 * 2 * (8 - 4) + 100)


def test_norms_of_queries_and_keys():
    more = activations(replace(SHAPE, qk_norm=True), MICRO) - activations(SHAPE, MICRO)
    assert more == 4 * 4 * 10 * 2 * (8 + 4)


def test_many_tokens_keep_a_part_of_their_logits():
    many = KEPT_LOGITS
    more = activations(SHAPE, replace(MICRO, responses=many)) - activations(SHAPE, MICRO)
    assert more == 2 * 4 * (CHUNK_LOGITS - 6 * 32) + 4 * (KEPT_LOGITS - 6 * 32)


def test_several_chunks_of_megatron_add_the_gradients_of_the_heads_weight():
    micro = replace(MICRO, responses=CHUNK_LOGITS, keeps_float32=False)
    wide = replace(SHAPE, hidden=2**22)
    one = activations(wide, replace(micro, responses=1)) - 4 * 32
    assert activations(wide, micro) - one == CHUNK_LOGITS * 4 + 4 * 32 * 2**22


def test_megatron_shares_a_layer_and_the_tokens_between_layers():
    micro = replace(MICRO, itemsize=2, keeps_float32=False, tensor=2, pipeline=2, in_flight=2)
    rest = 2 * 10 * 3 * 8
    head = max(3 * 4 * 6 * 16, 4 * 6 * 16 + 2 * 16 * 8)
    layer = 2 * 10 * (4 * 8 + (2 * 8 + 2 * 4 + 4 * 16) // 2)
    assert activations(SHAPE, micro) == 2 * 2 * layer + rest + head
    shared = replace(micro, sequence_parallel=True)
    layer = 2 * 10 * (4 * 8 // 2 + (2 * 8 + 2 * 4 + 4 * 16) // 2)
    assert activations(SHAPE, shared) == 2 * 2 * layer + rest // 2 + head


# -- memory ---------------------------------------------------------------------------------------------------------------


def test_the_embedded_engine_is_float32_whatever_it_computes_in():
    expected = {"weights": 4 * PARAMETERS, "gradients": 4 * PARAMETERS, "optimizer": 8 * PARAMETERS}
    assert held(told(CPU)) == expected
    assert held(told(GPU)) == expected


def test_bfloat16_parameters_have_a_float32_copy_that_the_distributed_optimizer_shares_out():
    found = told(trainer=MEGATRON, topology={"data_parallel_size": 2, "context_parallel_size": 2})
    assert held(found) == {"weights": 2 * PARAMETERS, "gradients": 4 * PARAMETERS, "optimizer": 12 * PARAMETERS // 4}
    assert found.loads[0].count == 4


def test_a_frozen_model_of_the_actors_shape_is_in_the_hosts_memory_under_megatron():
    roles = ("actor", "rollout", "reference")
    assert told(CPU, roles, trainer=MEGATRON).loads[0].host == 4 * PARAMETERS
    other = {"reference": replace(SHAPE, layers=8)}
    assert held(told(CPU, roles, other, trainer=MEGATRON))["frozen"] == other["reference"].parameters * 4
    embedded = told(CPU, roles)
    assert (held(embedded)["frozen"], embedded.loads[0].host) == (4 * PARAMETERS, 0)


def test_a_critic_is_in_the_actors_processes_or_in_its_own():
    roles, critic = ("actor", "rollout", "critic"), PARAMETERS - 32 * 8
    assert held(told(CPU, roles))["optimizer"] == 8 * (PARAMETERS + critic)
    apart = {"orchestrator": "ray", "resources": {"critic": {"colocated": False}}}
    found = told(CPU, roles, topology=apart)
    assert [load.role for load in found.loads] == ["actor", "critic", "rollout"]
    assert [held(found, i)["optimizer"] for i in range(2)] == [8 * PARAMETERS, 8 * critic]


def test_vllm_fills_its_part_of_a_gpu():
    found = told(rollout={"engine": "vllm", "gpu_memory_fraction": 0.5, "tensor_parallel_size": 2})
    engine, on_rank = found.loads[-1], SHAPE.on_rank(2, 1)
    assert engine.held == {"weights": 2 * on_rank, "cache": 500_000 - 2 * on_rank, "other": 0}
    # Half the keys and values of 4 layers, 4 wide, in 2 bytes; sequences of 6 + 4 tokens.
    assert engine.sequences == (500_000 - 2 * on_rank) // (2 * 4 * 4 * 2 // 2 * 10)
    assert engine.count == 2


def test_on_a_cpu_the_cache_is_that_of_what_is_decoded_at_once():
    assert told(CPU, rollout={"engine": "vllm"}).loads[-1].held["cache"] == 2 * (2 * 4 * 4 * 4 * 10)
    assert told(CPU).loads[-1].held == {"weights": 0, "cache": 2 * (2 * 4 * 4 * 4 * 10), "other": 0}


def test_those_that_take_turns_share_what_lasts():
    found = told(rollout={"engine": "vllm", "gpu_memory_fraction": 0.5})
    lasting = 16 * PARAMETERS
    assert found.peaks == (("actor + rollout", lasting + 500_000),)
    apart = told(rollout={"engine": "vllm", "gpu_memory_fraction": 0.5}, topology={"orchestrator": "ray"})
    assert dict(apart.peaks) == {"actor": apart.loads[0].total, "rollout": 500_000}


# -- speed ----------------------------------------------------------------------------------------------------------------


def test_decoding_reads_weights_and_half_full_caches():
    found = told(Device("cpu", None, 1e12, 1e5, ""), trainer={"use_rollout_log_probs": True})
    read = 4 * (PARAMETERS - 32 * 8 - 8) + 2 * (6 + 2) * (2 * 4 * 4 * 4)
    made = found.speed.generation
    assert made.seconds == pytest.approx(4 * read / 1e5, rel=1e-3)
    assert made.tokens_per_second == pytest.approx(8 / made.seconds)
    assert (made.bound, made.at_once) == ("memory bandwidth", 2)


def test_decoding_is_bound_by_arithmetic_where_that_is_slower():
    found = told(Device("cpu", None, 1e4, 1e12, ""))
    multiplied = PARAMETERS - 32 * 8 - 4 * 2 * 8 - 8
    assert found.speed.generation.seconds == pytest.approx((4 * 2 + 2 * 6) * 2 * multiplied / 1e4)
    assert found.speed.generation.bound == "arithmetic"


def test_training_counts_operations_of_every_pass():
    multiplied = PARAMETERS - 32 * 8 - 4 * 2 * 8 - 8
    one = 20 * (multiplied + 4 * 8 * 10)
    roles = ("actor", "rollout", "reference")
    assert told(CPU).speed.training.seconds == pytest.approx((6 + 2) * one / 1e6)
    assert told(CPU, roles).speed.training.seconds == pytest.approx((6 + 2 + 2) * one / 1e6)
    lean = {"use_rollout_log_probs": True, "gradient_checkpointing": True}
    assert told(CPU, trainer=lean).speed.training.seconds == pytest.approx(8 * one / 1e6)


def test_pipeline_stages_wait():
    trainer = {**MEGATRON, "micro_batch_size": 1}
    stages = {"pipeline_model_parallel_size": 2}
    found = told(rollout={"engine": "vllm"}, trainer=trainer, topology=stages).speed.training
    assert found.bubble == pytest.approx(1 / 3)  # two micro-batches, two stages
    whole = told(rollout={"engine": "vllm"}, trainer=trainer).speed.training
    assert found.seconds == pytest.approx(whole.seconds / 2 * 3 / 2)


def test_experts_that_no_sequence_takes_are_not_read():
    mixture = replace(SHAPE, experts=4, experts_per_token=2)
    device = Device("cpu", None, 1e15, 1e5, "")
    found = told(device, shapes={"actor": mixture}, rollout={"rollout_batch_size": 1}).speed.generation
    layer = 2 * 8 * 12 + 2 * 8 + 8 * 4 + 4 * 0.5 * 3 * 8 * 16
    assert found.seconds == pytest.approx(4 * (4 * (4 * layer + 32 * 8) + 8 * 2 * 4 * 4 * 4) / 1e5)


def test_a_copy_for_each_engine_and_none_for_shared_weights():
    assert told(CPU).speed.sync.copies == 0
    ray = {"orchestrator": "ray", "resources": {"rollout": {"actors": 3}}}
    sync = told(CPU, rollout={"engine": "vllm"}, topology=ray).speed.sync
    assert (sync.copies, sync.copy_bytes) == (3, 4 * PARAMETERS)
    assert sync.seconds == pytest.approx(4 * PARAMETERS / 1e4)
    assert told(trainer=MEGATRON, topology=ray, rollout={"engine": "vllm"}).speed.sync.copy_bytes == 2 * PARAMETERS


def test_a_step_is_a_sum_or_the_longer_part():
    ray = {"orchestrator": "ray"}
    sums, longer = (
        told(CPU, rollout={"engine": "vllm"}, topology=ray, trainer={"mode": mode}).speed for mode in ("sync", "hybrid")
    )
    parts = (sums.generation.seconds, sums.training.seconds)
    assert sums.seconds == pytest.approx(sum(parts) + sums.sync.seconds)
    assert longer.seconds == pytest.approx(max(parts) + longer.sync.seconds)
    assert sums.idle == pytest.approx(1 - sum(parts) / (2 * sums.seconds))
    assert longer.idle == pytest.approx(1 - sum(parts) / (2 * longer.seconds))
    assert told(CPU).speed.idle == pytest.approx(0)


# -- what does not fit ----------------------------------------------------------------------------------------------------


def test_a_device_that_is_too_small_says_what_would_help():
    small = replace(GPU, memory=40_000)
    assert (
        told(small, rollout={"engine": "vllm"})
        .problems[0]
        .endswith(
            "GB do not fit into the 0 GB of an toy. Fix: write a larger tensor_model_parallel_size, "
            "gradient_checkpointing: true, or fewer tokens in a micro-batch"
        )
    )


def test_an_engine_without_room_for_a_sequence_samples_nothing():
    found = told(rollout={"engine": "vllm", "gpu_memory_fraction": 0.005})
    assert found.speed is None
    assert found.problems == (
        "rollout: beside the weights the cache of an engine has no room for one sequence of 10 tokens on an toy. "
        "Fix: write a larger rollout.gpu_memory_fraction or rollout.tensor_parallel_size",
    )


def test_what_no_field_says_is_noted():
    assert told(CPU, data={"task": "none"}).notes == (
        "data.max_prompt_tokens is not set: prompts are taken as 512 tokens long",
    )
