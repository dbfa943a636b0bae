"""Rules about a run on Megatron-core's ranks: parallel sizes against the model's shape, batches against ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from relax_core.errors import nearest
from relax_core.rules import Finding, Run, rule, rules_in
from relax_core.rules.megatron_args import OWNED, can_shard_optimizer, known_arguments

FAMILIES = ("llama", "qwen3", "qwen3_moe")


def _is_used(run: Run) -> bool:
    return run.topology.run.trainer.engine == "megatron"


def _is_installed() -> bool:
    return find_spec("megatron") is not None and find_spec("megatron.core") is not None


def _shapes(run: Run) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The models that the ranks would hold, of families that they can: of the others no size means anything."""
    for setting, shape in run.shapes.items() if _is_used(run) else ():
        if shape.get("model_type") in FAMILIES:
            yield setting, shape


@rule("RLX150", "Megatron-core is installed where it trains")
def installed(run: Run) -> Iterable[Finding]:
    if _is_used(run) and not _is_installed():
        yield "trainer.engine", "the extra 'megatron' is not installed", "pip install 'relax-rl[megatron]'"


@rule("RLX151", "The model is one that Megatron-core can hold")
def known_family(run: Run) -> Iterable[Finding]:
    for setting, shape in run.shapes.items() if _is_used(run) else ():
        if shape.get("model_type") not in FAMILIES:
            problem = f"the megatron engine has no '{shape.get('model_type')}' model"
            yield setting, problem, f"give one of {', '.join(FAMILIES)}, or write trainer.engine: torch"
    for setting, shape in _shapes(run):
        for problem in _unfit(shape):
            yield setting, f"the megatron engine has no {problem}", "write trainer.engine: torch"


def _unfit(shape: Mapping[str, Any]) -> Iterator[str]:
    rope = shape.get("rope_parameters") or shape.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if shape.get("attention_bias") or shape.get("mlp_bias"):
        yield "biases in its layers"
    if shape.get("hidden_act", "silu") != "silu":
        yield f"activation '{shape['hidden_act']}'"
    if kind not in ("default", "llama3") or (kind == "llama3" and not _is_llama3(rope)):
        yield f"rotary embedding of kind '{kind}' with these values"
    if shape.get("use_sliding_window"):
        yield "sliding window"
    if shape.get("mlp_only_layers") or shape.get("decoder_sparse_step", 1) != 1:
        yield "mixture of experts in some of its layers only"


def _is_llama3(rope: Mapping[str, Any]) -> bool:
    given = (rope.get("low_freq_factor"), rope.get("high_freq_factor"), rope.get("original_max_position_embeddings"))
    return given == (1.0, 4.0, 8192)


@rule("RLX152", "Tensor parallelism divides the attention heads")
def heads_divide(run: Run) -> Iterable[Finding]:
    ranks = run.topology.run.topology.tensor_model_parallel_size
    for setting, shape in _shapes(run):
        heads = shape["num_attention_heads"]
        for name, count in {
            "attention heads": heads,
            "key-value heads": shape.get("num_key_value_heads") or heads,
        }.items():
            if count % ranks:
                problem = f"{count} {name} of {setting} cannot be cut into {ranks} equal parts"
                yield "topology.tensor_model_parallel_size", problem, _one_of(count)


@rule("RLX153", "Pipeline parallelism divides the layers")
def layers_divide(run: Run) -> Iterable[Finding]:
    stages = run.topology.run.topology.pipeline_model_parallel_size
    for setting, shape in _shapes(run):
        if (layers := shape["num_hidden_layers"]) % stages:
            problem = f"{layers} layers of {setting} cannot be cut into {stages} equal stages"
            yield "topology.pipeline_model_parallel_size", problem, _one_of(layers)


@rule("RLX154", "Sequence parallelism has ranks to share with, and experts have it")
def sequence_parallel(run: Run) -> Iterable[Finding]:
    topology = run.topology.run.topology
    if _is_used(run) and topology.sequence_parallel and topology.tensor_model_parallel_size == 1:
        problem = "there are no tensor-parallel ranks to share a sequence with"
        yield "topology.sequence_parallel", problem, "write sequence_parallel: false"
    for setting, shape in _shapes(run):
        if "moe" in shape["model_type"] and topology.tensor_model_parallel_size > 1 and not topology.sequence_parallel:
            problem = f"the experts of {setting} under tensor parallelism need it"
            yield "topology.sequence_parallel", problem, "write sequence_parallel: true"


@rule("RLX155", "A response fits into the model's context")
def context_is_long_enough(run: Run) -> Iterable[Finding]:
    rollout = run.topology.run.rollout
    longest = rollout.at_once(1, rollout.max_new_tokens) - 1
    for setting, shape in _shapes(run):
        if (context := shape.get("max_position_embeddings", longest + 1)) <= longest:
            problem = f"{longest} tokens and a prompt do not fit into the {context} of {setting}"
            yield "rollout.max_new_tokens", problem, f"write less than {context}"


@rule("RLX156", "Every tensor-parallel rank has a part of the vocabulary, of the feed-forward layers too")
def widths_divide(run: Run) -> Iterable[Finding]:
    ranks = run.topology.run.topology.tensor_model_parallel_size
    for setting, shape in _shapes(run):
        if (ids := shape["vocab_size"]) < ranks:
            problem = f"the {ids} ids of {setting} are fewer than {ranks} ranks"
            yield "topology.tensor_model_parallel_size", problem, f"write {ids} or less"
        for name in ("intermediate_size", "moe_intermediate_size"):
            if (width := shape.get(name) or 0) % ranks:
                problem = f"the {name} {width} of {setting} cannot be cut into {ranks} equal parts"
                yield "topology.tensor_model_parallel_size", problem, _one_of(width)


@rule("RLX157", "Every data-parallel rank has a sequence to train on")
def replicas_have_work(run: Run) -> Iterable[Finding]:
    ranks, size = run.topology.run.topology.data_parallel_size, run.topology.global_batch_size
    if _is_used(run) and ranks > size:
        problem = f"an update has {size} sequences, for {ranks} replicas"
        yield "topology.data_parallel_size", problem, f"write {size} or less, or a larger trainer.global_batch_size"


@rule("RLX158", "Data-parallel ranks and pipeline stages are all at work", "warning")
def ranks_are_busy(run: Run) -> Iterable[Finding]:
    topology, trainer = run.topology.run.topology, run.topology.run.trainer
    ranks, size, stages = (
        topology.data_parallel_size,
        run.topology.global_batch_size,
        topology.pipeline_model_parallel_size,
    )
    if not _is_used(run) or ranks > size:
        return
    if size % ranks:
        problem = f"{size} sequences of an update are no equal shares for {ranks} replicas, of which some wait"
        yield "topology.data_parallel_size", problem, _one_of(size)
    cuts = -(-size // ranks // trainer.micro_batch_size)
    if not trainer.use_dynamic_batch_size and cuts < stages:
        problem = f"{cuts} micro-batches in an update keep no more than {cuts} of {stages} stages at work"
        yield "trainer.micro_batch_size", problem, f"write {max(1, size // ranks // stages)} or less"


@rule("RLX159", "Megatron's warm-up ends before the run does")
def warmup_ends(run: Run) -> Iterable[Finding]:
    warmup, updates = run.topology.run.trainer.lr_warmup_steps, run.topology.updates
    if _is_used(run) and warmup >= updates:
        problem = f"{warmup} updates of warm-up in a run of {updates}, which Megatron's schedule refuses"
        yield "trainer.lr_warmup_steps", problem, f"write less than {updates}"


@rule("RLX160", "Every one of Megatron's arguments has a name that it knows")
def arguments_are_known(run: Run) -> Iterable[Finding]:
    given = run.topology.run.trainer.megatron_args
    known = known_arguments() if given and _is_used(run) and _is_installed() else []
    for name in given if known else ():
        setting = f"trainer.megatron_args.{name}"
        if name in OWNED:
            yield setting, "this run decides it elsewhere", OWNED[name]
        elif name not in known:
            yield setting, "Megatron-core has no such argument", nearest(name, known) or "leave it out"


@rule("RLX162", "The distributed optimizer can go on from a checkpoint")
def sharded_optimizer_resumes(run: Run) -> Iterable[Finding]:
    wanted = run.topology.run.trainer.megatron_args.get("use_distributed_optimizer")
    if _is_used(run) and wanted and not can_shard_optimizer():
        problem = "without Transformer Engine or Apex it could not go on from its checkpoint"
        yield "trainer.megatron_args.use_distributed_optimizer", problem, "leave it out, or install transformer-engine"


@rule("RLX161", "The hf sampler can take the trained weights")
def sampler_takes_weights(run: Run) -> Iterable[Finding]:
    for setting, shape in _shapes(run):
        if setting == "model.path" and "moe" in shape["model_type"] and run.topology.run.rollout.engine == "hf":
            problem = "the hf engine holds the experts of a layer in one tensor, and cannot take them one by one"
            yield "rollout.engine", problem, "write trainer.engine: torch, or choose a rollout engine that can"


def _one_of(count: int) -> str:
    return "write one of " + ", ".join(str(n) for n in range(1, min(count, 128) + 1) if count % n == 0)


RULES = rules_in(globals())
