"""Starting vLLM's engine, and its refusals and failures as errors of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from relax_core.errors import LoadError, RelaxError, RunError
from relax_core.rollout.types import EngineEnded
from relax_core.rollout.vllm.arguments import VLLMSettings, engine_arguments, head_size
from relax_core.rollout.vllm.environment import starting
from relax_core.rollout.vllm.update import WHO
from relax_core.rollout.vllm.watch import watch

RESUME = "go on from the last checkpoint: --resume"


def start(settings: VLLMSettings) -> Any:
    """vLLM's `LLMEngine`. Raises LoadError for what vLLM refuses, and for heads that it has no kernel for."""
    alone = settings.rollout.separate_process
    with starting(separate_process=alone, device=settings.device, threads=settings.threads):
        _check_heads(settings)
        engine = _start(settings)
    if alone:
        watch(engine.engine_core)
    return engine


def _start(settings: VLLMSettings) -> Any:
    try:
        from vllm import EngineArgs, envs
        from vllm.v1.engine.llm_engine import LLMEngine

        # It keeps the environment that an earlier engine of this process was started in.
        envs.disable_envs_cache()
        return LLMEngine.from_engine_args(EngineArgs(**engine_arguments(settings)))
    except Exception as error:
        fix = "correct rollout.engine_args, or leave more memory to the engine"
        raise LoadError(f"vLLM does not start: {_reason(error)}", who="rollout.engine", fix=fix) from error


def _check_heads(settings: VLLMSettings) -> None:
    """On a CPU a size of heads without a kernel would fail in the first forward pass alone."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    size, sizes = head_size(settings.model_config), CPUAttentionBackend.get_supported_head_sizes()
    if settings.device == "cpu" and size not in sizes:
        problem = f"vLLM has no attention kernel for heads of {size} on a CPU; it has {', '.join(map(str, sizes))}"
        raise LoadError(problem, who="rollout.engine", fix="write rollout.engine: hf, or take another model")


@contextmanager
def alive(what: str) -> Iterator[None]:
    """Whatever vLLM raises inside the block, as one RunError that says what was going on."""
    from vllm.v1.engine.exceptions import EngineDeadError

    try:
        yield
    except RelaxError:
        raise
    except EngineDeadError:
        fix = f"look for a process that was killed, for its memory perhaps; then {RESUME}"
        raise EngineEnded(f"its process ended during {what}", who=WHO, fix=fix) from None
    except Exception as error:
        raise RunError(f"{what} failed: {_reason(error)}", who=WHO, fix=RESUME) from error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
