"""Rules about the run itself: sizes, sampling, data, and what this orchestrator and these engines can do."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from relax_core.config import PromptOrigin
from relax_core.rules import Finding, Run, rule, rules_in


@rule("RLX101", "Prompts come from exactly one place")
def one_source(run: Run) -> Iterable[Finding]:
    yield from _not_one_origin(run.topology.run.data, "data", "prompts")


def _not_one_origin(origin: PromptOrigin, section: str, what: str) -> Iterable[Finding]:
    if len(given := origin.origins) != 1:
        problem = f"{what} come from {' and '.join(given)}" if given else f"nothing says where {what} come from"
        yield section, problem, f"give exactly one of {section}.path, {section}.task, {section}.source"


@rule("RLX102", "Every update has the same number of sequences")
def batches_divide(run: Run) -> Iterable[Finding]:
    topology, trainer = run.topology, run.topology.run.trainer
    sequences, size, updates = topology.sequences_per_rollout, trainer.global_batch_size, trainer.num_steps_per_rollout
    made = f"{topology.rollout_batch_size} prompts × {topology.n_samples_per_prompt} samples"
    divisors = "write one of " + ", ".join(str(n) for n in range(1, sequences + 1) if sequences % n == 0)
    if updates and sequences % updates:
        problem = f"{made} = {sequences} sequences cannot be cut into {updates} equal updates"
        yield "trainer.num_steps_per_rollout", problem, divisors
    elif size and sequences % size:
        yield (
            "trainer.global_batch_size",
            f"{made} = {sequences} sequences cannot be cut into updates of {size}",
            divisors,
        )
    elif size and updates and size * updates != sequences:
        problem = f"{updates} updates of {size} are not the {sequences} sequences of a rollout ({made})"
        yield "trainer.global_batch_size", problem, f"write global_batch_size: {sequences // updates}, or leave it out"


@rule("RLX103", "The temperature is positive")
def positive_temperature(run: Run) -> Iterable[Finding]:
    temperature = run.topology.run.rollout.temperature
    if not temperature > 0:
        yield (
            "rollout.temperature",
            f"{temperature} is not a temperature to learn at",
            "write more than 0, 1.0 for example",
        )


@rule("RLX104", "Truncated sampling moves the sampler's log-probs away from the trainer's", "warning")
def truncated_sampling(run: Run) -> Iterable[Finding]:
    rollout, trainer = run.topology.run.rollout, run.topology.run.trainer
    if rollout.top_p < 1 or rollout.top_k > 0:
        setting = "rollout.top_p" if rollout.top_p < 1 else "rollout.top_k"
        taken = "; they are taken as the old policy's" if trainer.use_rollout_log_probs else ""
        problem = f"log-probs are those of the truncated distribution, the trainer's of the whole{taken}"
        yield setting, problem, "write top_p: 1.0 and top_k: 0"


@rule("RLX105", "The local orchestrator is synchronous")
def local_is_synchronous(run: Run) -> Iterable[Finding]:
    if run.topology.mode != "sync" and run.topology.run.topology.orchestrator == "local":
        fix = "write trainer.mode: sync, or topology.orchestrator: ray"
        yield "trainer.mode", f"the local orchestrator cannot run '{run.topology.mode}'", fix


@rule("RLX106", "The torch engine is one process")
def torch_is_one_process(run: Run) -> Iterable[Finding]:
    topology, trainer = run.topology.run.topology, run.topology.run.trainer
    if trainer.engine != "torch":
        return
    for name, size in topology:
        if name.endswith("_size") and size > 1:
            fix = f"write {name}: 1, or trainer.engine: megatron"
            yield f"topology.{name}", f"the torch engine trains in one process, not on {size} ranks", fix
    for setting, given in {"topology.sequence_parallel": topology.sequence_parallel,
                           "trainer.megatron_args": trainer.megatron_args}.items():  # fmt: skip
        if given:
            yield setting, "the torch engine does not read it", "leave it out, or write trainer.engine: megatron"


@rule("RLX107", "Staleness needs a mode that has any")
def staleness_has_a_mode(run: Run) -> Iterable[Finding]:
    if run.topology.mode == "sync" and run.topology.max_staleness > 0:
        yield "trainer.max_staleness", "a synchronous run has no stale samples", "write max_staleness: 0"


@rule("RLX108", "The length constant is read by one aggregation alone")
def length_is_read(run: Run) -> Iterable[Finding]:
    algorithm = run.topology.run.algorithm
    if algorithm.loss_agg_length is not None and algorithm.loss_agg_mode != "seq-mean-token-sum-norm":
        fix = "write loss_agg_mode: seq-mean-token-sum-norm, or leave it out"
        yield "algorithm.loss_agg_length", f"'{algorithm.loss_agg_mode}' does not read it", fix


@rule("RLX109", "A micro-batch has room for a response", "warning")
def budget_holds_a_response(run: Run) -> Iterable[Finding]:
    trainer, longest = run.topology.run.trainer, run.topology.run.rollout.max_new_tokens
    if trainer.use_dynamic_batch_size and trainer.max_tokens_per_micro_batch < longest:
        problem = (
            f"{trainer.max_tokens_per_micro_batch} tokens hold no response of {longest}; it goes alone, over the budget"
        )
        yield "trainer.max_tokens_per_micro_batch", problem, f"write more than {longest}"


@rule("RLX110", "The warm-up ends before the run does", "warning")
def warmup_ends(run: Run) -> Iterable[Finding]:
    trainer, updates = run.topology.run.trainer, run.topology.updates
    if trainer.lr_warmup_steps >= updates:
        problem = f"{trainer.lr_warmup_steps} updates of warm-up in a run of {updates}"
        yield "trainer.lr_warmup_steps", problem, f"write less than {updates}"


@rule("RLX115", "Updates of any size need rollouts of any size")
def rollouts_vary(run: Run) -> Iterable[Finding]:
    varies, partial = run.topology.run.trainer.use_dynamic_global_batch_size, run.topology.run.rollout.partial_rollout
    if varies and not partial and run.topology.mode == "sync":
        problem = "a synchronous rollout always has all its sequences"
        yield "trainer.use_dynamic_global_batch_size", problem, "write use_dynamic_global_batch_size: false"


@rule("RLX111", "Held-out prompts come from exactly one place")
def one_held_out_source(run: Run) -> Iterable[Finding]:
    evaluation = run.topology.run.evaluation
    if evaluation.interval:
        yield from _not_one_origin(evaluation, "evaluation", "held-out prompts")


@rule("RLX112", "Settings of evaluations are read by one", "warning")
def evaluations_are_made(run: Run) -> Iterable[Finding]:
    evaluation = run.topology.run.evaluation
    for name, info in () if evaluation.interval else type(evaluation).model_fields.items():
        if getattr(evaluation, name) != info.default:
            fix = "write evaluation.interval: 10, for example, or leave it out"
            yield f"evaluation.{name}", "nothing is evaluated at interval 0", fix


@rule("RLX113", "Greedy sampling gives one response and truncates nothing", "warning")
def greedy_is_alone(run: Run) -> Iterable[Finding]:
    evaluation = run.topology.run.evaluation
    if not evaluation.interval or evaluation.temperature > 0:
        return
    read = "greedy sampling does not read it"
    count = evaluation.n_samples_per_prompt
    for name, problem in {"n_samples_per_prompt": f"{count} greedy samples of a prompt are all the same",
                          "top_k": read, "top_p": read}.items():  # fmt: skip
        if getattr(evaluation, name) != type(evaluation).model_fields[name].default:
            fix = "leave it out, or write a temperature above 0"
            yield f"evaluation.{name}", problem, fix


@rule("RLX114", "What is evaluated on is not trained on", "warning")
def held_out_is_held_out(run: Run) -> Iterable[Finding]:
    evaluation, data = run.topology.run.evaluation, run.topology.run.data
    if evaluation.interval and evaluation.origins and _located(evaluation, run.base) == _located(data, run.base):
        problem = "the same prompts are trained on, so nothing is held out"
        yield f"evaluation.{evaluation.origins[0]}", problem, "name prompts that are not those of data"


def _located(origin: PromptOrigin, base: Path) -> dict[str, Any]:
    """The origin by field, with files that are named in two ways under one name."""
    values = {name: getattr(origin, name) for name in PromptOrigin.model_fields}
    return values | {name: (base / values[name]).resolve() for name in ("path", "source") if values[name] is not None}


RULES = rules_in(globals())
