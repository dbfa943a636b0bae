"""From a run's settings to vLLM's engine arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relax_core.config import RolloutSection

VOCABULARY = "relax_vocabulary"
CPU_CACHE_BYTES = 4 * 2**30
DEFAULT_SEQUENCES = 256
PREFILL_TOKENS = 4096
CPU_BLOCK = 32
"""Tokens of a block of the cache: samples of one prompt share its whole blocks. vLLM's own 128 are most of a prompt."""


@dataclass(frozen=True, slots=True)
class VLLMSettings:
    """What the engine reads of a run.

    `path` is the directory it starts from, `eos_ids` end a response, `vocabulary` is the number of ids that the
    tokenizer knows where the model has more, `model_config` the Hugging Face configuration, `longest` the tokens of the
    longest prompt and response together, `shapes` those of the weights that an update brings, `device` and `threads`
    the trainer's; `in_flight`: weights change while responses are under way.
    """

    rollout: RolloutSection
    path: Path
    eos_ids: tuple[int, ...]
    vocabulary: int | None
    model_config: Any
    longest: int
    shapes: Mapping[str, tuple[int, ...]]
    device: str = "cpu"
    seed: int = 0
    threads: int | None = None
    in_flight: bool = False
    trust_remote_code: bool = False

    @property
    def max_model_len(self) -> int:
        """Tokens of a sequence that the cache has room for."""
        return self.rollout.max_model_len or self.longest

    @property
    def way(self) -> str:
        """How weights reach the engine: `direct` in this process, else `bytes`, or a backend of vLLM's weight transfer."""
        rollout = self.rollout
        if not rollout.separate_process and rollout.tensor_parallel_size == 1:
            return "direct"
        ways = {"bytes": "bytes", "ipc": "ipc", "broadcast": "relax_gloo" if self.device == "cpu" else "nccl"}
        return ways.get(rollout.weight_transfer, "bytes" if self.device == "cpu" else "ipc")

    @property
    def sleeps(self) -> bool:
        """Whether the engine gives its memory to the trainer between rollouts: on a GPU that the two share."""
        return self.device == "cuda"


def engine_arguments(settings: VLLMSettings) -> dict[str, Any]:
    """Keyword arguments of vLLM's `EngineArgs`; `rollout.engine_args` go over what stands here."""
    rollout = settings.rollout
    arguments = {
        "model": str(settings.path),
        "dtype": dtype_of(settings),
        "seed": settings.seed,
        "trust_remote_code": settings.trust_remote_code,
        "tensor_parallel_size": rollout.tensor_parallel_size,
        "gpu_memory_utilization": rollout.gpu_memory_fraction,
        "max_model_len": settings.max_model_len,
        "use_tqdm_on_load": False,
        "max_num_seqs": rollout.max_batch or DEFAULT_SEQUENCES,
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": "relax_core.rollout.vllm.worker.WeightReceiver",
        **({} if settings.way in ("direct", "bytes") else {"weight_transfer_config": {"backend": settings.way}}),
        **_vocabulary(settings.vocabulary),
        **(_on_cpu(settings) if settings.device == "cpu" else {"enable_sleep_mode": settings.sleeps}),
    }
    return arguments | rollout.engine_args


def dtype_of(settings: VLLMSettings) -> str:
    """`auto` is float32 on a CPU and bfloat16 on a GPU."""
    if settings.rollout.dtype != "auto":
        return settings.rollout.dtype
    return "float32" if settings.device == "cpu" else "bfloat16"


def _vocabulary(known: int | None) -> dict[str, Any]:
    if known is None:
        return {}
    processor = "relax_core.rollout.vllm.vocabulary:KnownTokens"
    return {"logits_processors": [processor], "additional_config": {VOCABULARY: known}}


def _on_cpu(settings: VLLMSettings) -> dict[str, Any]:
    """No compilation, and a cache for as many full sequences as are decoded at once, 4 GiB at most but for one.

    A prompt is never cut in two: vLLM steps a request's generator back then, which a CPU's cannot.
    """
    one = _cache_bytes(settings)
    wanted = one * (settings.rollout.max_batch or DEFAULT_SEQUENCES)
    return {
        "enforce_eager": True,
        "block_size": CPU_BLOCK,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(settings.max_model_len, PREFILL_TOKENS),
        "kv_cache_memory_bytes": max(2 * one, min(wanted, CPU_CACHE_BYTES)),
    }


def _cache_bytes(settings: VLLMSettings) -> int:
    """Keys and values of one sequence of the greatest length, in bytes, with a block of 128 tokens to spare."""
    model = settings.model_config.get_text_config()
    heads = getattr(model, "num_key_value_heads", None) or model.num_attention_heads
    width = head_size(model)
    size = 4 if dtype_of(settings) == "float32" else 2
    return int(2 * model.num_hidden_layers * heads * width * size * (settings.max_model_len + 128))


def head_size(model_config: Any) -> int:
    """Width of one attention head."""
    model = model_config.get_text_config()
    return int(getattr(model, "head_dim", None) or model.hidden_size // model.num_attention_heads)
