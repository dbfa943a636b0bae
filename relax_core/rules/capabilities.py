"""Rules from what the chosen plugins declare."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from relax_core.binding import BoundPlugin
from relax_core.rules import Finding, Run, rule, rules_in
from relax_core.spec import BATCH_FIELDS, TURN_REWARD, RoleName, TokenField, capability


def _declared(run: Run, name: str) -> Iterator[tuple[BoundPlugin, RoleName, Any]]:
    for plugin, role_name, role, config in run.binding.roles():
        if hasattr(role, name):
            yield plugin, role_name, capability(role, name, config)


@rule("RLX201", "The critic's settings are read by a critic")
def critic_is_there(run: Run) -> Iterable[Finding]:
    model, trainer = run.topology.run.model, run.topology.run.trainer
    given = {
        "model.critic_path": model.critic_path is not None,
        "trainer.critic_lr": trainer.critic_lr is not None,
        "trainer.num_critic_only_steps": trainer.num_critic_only_steps > 0,
    }
    for setting, is_set in given.items():
        if is_set and "critic" not in run.topology.roles:
            yield (
                setting,
                f"'{run.binding.estimator.name}' has no critic",
                "leave it out, or choose an estimator with one",
            )


@rule("RLX202", "A reference KL has exactly one reference")
def one_reference(run: Run) -> Iterable[Finding]:
    model = run.topology.run.model
    given = [name for name in ("ref_hf_model_path", "ref_dist_ckpt_path") if getattr(model, name) is not None]
    needing = [plugin.name for plugin, _, needed in _declared(run, "requires_reference") if needed]
    if needing and len(given) != 1:
        problem = f"{', '.join(needing)} needs one reference, {len(given)} are given"
        yield (
            "model.ref_hf_model_path",
            problem,
            "give exactly one of model.ref_hf_model_path, model.ref_dist_ckpt_path",
        )


@rule("RLX203", "The torch engine reads Hugging Face directories")
def reference_is_readable(run: Run) -> Iterable[Finding]:
    config = run.topology.run
    if config.model.ref_dist_ckpt_path is not None and config.trainer.engine == "torch":
        problem = "the torch engine cannot read a Megatron checkpoint"
        fix = "give model.ref_hf_model_path instead, or write trainer.engine: megatron"
        yield "model.ref_dist_ckpt_path", problem, fix


@rule("RLX204", "A reference is read by something", "warning")
def reference_is_read(run: Run) -> Iterable[Finding]:
    if run.topology.run.model.ref_hf_model_path and not run.binding.needs("requires_reference"):
        fix = "leave it out, or switch on what reads it"
        yield "model.ref_hf_model_path", "nothing in this run reads a reference", fix


@rule("RLX205", "What needs a teacher has one")
def teacher_exists(run: Run) -> Iterable[Finding]:
    asking = [each for name in ("requires_teacher", "candidates") for each in _declared(run, name)]
    if "teacher" not in run.topology.roles:
        for name in sorted({plugin.name for plugin, _, needed in asking if needed}):
            yield "model.teacher_path", f"'{name}' needs a teacher", "give model.teacher_path"


@rule("RLX218", "A teacher is read by something", "warning")
def teacher_is_read(run: Run) -> Iterable[Finding]:
    if "teacher" in run.topology.roles and not run.binding.needs("requires_teacher"):
        yield "model.teacher_path", "nothing in this run reads a teacher", "leave it out, or switch on what reads it"


@rule("RLX206", "Groups are as large as the estimator needs")
def group_size(run: Run) -> Iterable[Finding]:
    for plugin, _, least in _declared(run, "min_group_size"):
        if run.topology.n_samples_per_prompt < least:
            problem = f"'{plugin.name}' needs groups of {least} or more"
            yield "rollout.n_samples_per_prompt", problem, f"write {least} or more"


@rule("RLX207", "Groups that must be equal can be")
def equal_groups(run: Run) -> Iterable[Finding]:
    """A synchronous step waits for every response of its groups; another mode may take them in parts."""
    rollout, trainer = run.topology.run.rollout, run.topology.run.trainer
    for plugin, _, needed in _declared(run, "requires_equal_groups"):
        if run.topology.mode == "sync":
            continue
        if needed and rollout.partial_rollout:
            yield "rollout.partial_rollout", f"'{plugin.name}' needs whole groups", "write partial_rollout: false"
        if needed and trainer.use_dynamic_global_batch_size:
            setting = "trainer.use_dynamic_global_batch_size"
            yield setting, f"'{plugin.name}' needs whole groups", "write use_dynamic_global_batch_size: false"


@rule("RLX208", "Normalisation is as the estimator needs it")
def normalization(run: Run) -> Iterable[Finding]:
    switched_on = run.topology.run.algorithm.normalize_advantages
    for plugin, _, use in _declared(run, "normalization_use"):
        if use == "required" and not switched_on:
            problem = f"'{plugin.name}' is defined with normalised advantages"
            yield "algorithm.normalize_advantages", problem, "write normalize_advantages: true"
        if use == "forbidden" and switched_on:
            problem = f"'{plugin.name}' is not unbiased with normalised advantages"
            yield "algorithm.normalize_advantages", problem, "write normalize_advantages: false"


@rule("RLX209", "Context parallelism is supported by all that see a part of a sequence")
def context_parallel(run: Run) -> Iterable[Finding]:
    size = run.topology.context_parallel_size
    for plugin, role, supported in _declared(run, "supports_context_parallel"):
        if size > 1 and not supported:
            problem = f"'{plugin.name}' ({role}) needs whole sequences, not a part on each of {size} ranks"
            yield "topology.context_parallel_size", problem, "write context_parallel_size: 1"


@rule("RLX210", "A loss over a micro-batch depends on how micro-batches are cut", "warning")
def microbatch_scope(run: Run) -> Iterable[Finding]:
    for plugin, _, scope in _declared(run, "scope"):
        if scope == "microbatch" and run.topology.run.trainer.use_dynamic_batch_size:
            problem = f"'{plugin.name}' is solved on each micro-batch, whose size would vary"
            yield "trainer.use_dynamic_batch_size", problem, "write use_dynamic_batch_size: false"


@rule("RLX211", "An on-policy loss trains on what the current weights sampled")
def on_policy(run: Run) -> Iterable[Finding]:
    for plugin, _, needed in _declared(run, "requires_on_policy"):
        if not needed:
            continue
        for setting, problem, fix in _off_policy(run):
            yield setting, f"'{plugin.name}' has no ratio to correct for {problem}", fix


def _off_policy(run: Run) -> Iterator[Finding]:
    topology, config = run.topology, run.topology.run
    if topology.mode != "sync":
        yield "trainer.mode", f"{topology.mode} samples", "write trainer.mode: sync"
    if topology.max_staleness > 0:
        yield "trainer.max_staleness", "stale samples", "write max_staleness: 0"
    if topology.num_steps_per_rollout > 1:
        setting = "num_steps_per_rollout" if config.trainer.num_steps_per_rollout else "global_batch_size"
        fix = f"write num_steps_per_rollout: 1, global_batch_size: {topology.sequences_per_rollout}"
        yield f"trainer.{setting}", "a second update on the same rollout", fix
    if config.rollout.partial_rollout:
        yield "rollout.partial_rollout", "responses of several versions", "write partial_rollout: false"
    if config.trainer.use_dynamic_global_batch_size:
        yield "trainer.use_dynamic_global_batch_size", "late samples", "write use_dynamic_global_batch_size: false"


@rule("RLX212", "Staleness is within what every plugin stands")
def staleness(run: Run) -> Iterable[Finding]:
    for plugin, _, most in _declared(run, "max_staleness"):
        if most is not None and run.topology.max_staleness > most:
            yield "trainer.max_staleness", f"'{plugin.name}' stands {most} at most", f"write max_staleness: {most}"


@rule("RLX213", "Modes other than sync are supported by all")
def asynchronous(run: Run) -> Iterable[Finding]:
    for plugin, _, supported in _declared(run, "supports_async"):
        if run.topology.mode != "sync" and not supported:
            yield (
                "trainer.mode",
                f"'{plugin.name}' cannot run in mode '{run.topology.mode}'",
                "write trainer.mode: sync",
            )


@rule("RLX214", "The aggregation keeps the objective")
def aggregation(run: Run) -> Iterable[Finding]:
    mode = run.topology.run.algorithm.loss_agg_mode
    for plugin, _, allowed in _declared(run, "aggregations"):
        if allowed is not None and mode not in allowed:
            problem = f"'{mode}' changes the objective of '{plugin.name}'"
            yield "algorithm.loss_agg_mode", problem, f"write {' or '.join(sorted(allowed))}"


@rule("RLX215", "A KL loss is one that the algorithm knows of")
def kl_modes(run: Run) -> Iterable[Finding]:
    added = {kind: plugin for plugin, _, kind in _declared(run, "kl") if kind is not None}
    for plugin, _, allowed in _declared(run, "kl_modes"):
        for kind, source in added.items():
            if kind not in allowed:
                known = ", ".join(sorted(allowed)) or "none"
                problem = f"'{plugin.name}' is not defined with {kind} (it knows: {known})"
                yield (
                    f"algorithm.{source.spec.section}.enable",
                    problem,
                    "switch it off, or choose a kind that it knows",
                )


@rule("RLX216", "Every option is read by a chosen plugin")
def option_is_read(run: Run) -> Iterable[Finding]:
    chosen = " and ".join(sorted({run.binding.estimator.name, run.binding.loss.name}))
    for setting, owners in run.ignored:
        fix = f"leave it out, or choose {owners}"
        yield setting, f"{chosen} would ignore it; it belongs to {owners}", fix


@rule("RLX217", "Declared per-token fields are filled by the environment")
def token_fields(run: Run) -> Iterable[Finding]:
    setting = "rollout.environment.name"
    declared = [(each, field) for each in run.binding.active for field in each.spec.fields]
    for plugin, field in declared:
        if not isinstance(field, TokenField):
            continue
        reads = f"'{plugin.name}' reads '{field.name}' of every token"
        if field.name != TURN_REWARD:
            yield setting, f"{reads}, and environments give '{TURN_REWARD}' alone", f"declare '{TURN_REWARD}'"
        elif run.topology.run.rollout.environment.name is None:
            yield setting, f"{reads}, which an environment gives", "name an environment that rewards turns"


@rule("RLX219", "A plugin's own field has one name and one kind")
def own_fields(run: Run) -> Iterable[Finding]:
    seen: dict[str, tuple[str, str]] = {}
    for plugin in run.binding.active:
        for field in plugin.spec.fields:
            kind = type(field).__name__
            owner, other = seen.setdefault(field.name, (plugin.name, kind))
            if field.name in BATCH_FIELDS:
                problem = f"'{plugin.name}' declares '{field.name}', which a batch has by itself"
                yield "algorithm", problem, "give the field another name"
            elif kind != other:
                problem = f"'{field.name}' is a {other} of '{owner}' and a {kind} of '{plugin.name}'"
                yield "algorithm", problem, "choose one of the two, or rename a field"


RULES = rules_in(globals())
