"""What Megatron-core needs where there is no CUDA. It is imported nowhere else, and does nothing to the numbers.

Megatron-core writes `device="cuda"` in its schedules and optimizers and asks CUDA for streams and generators; everything
else of it runs on a CPU with gloo.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class OnCpu(TorchFunctionMode):
    """Reads `cuda` as `cpu` in every call of torch.

    `Tensor.type()` answers as CUDA's does, because Megatron's optimizers assert that string.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {name: value for name, value in (kwargs or {}).items() if name != "pin_memory"}
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        if func is Tensor.cuda:
            return args[0]
        if func is Tensor.record_stream:
            return None
        if func is Tensor.to and len(args) > 1 and _is_cuda(args[1]):
            args = (args[0], "cpu", *args[2:])
        result = func(*args, **kwargs)
        return result.replace("torch.", "torch.cuda.") if func is Tensor.type and isinstance(result, str) else result


def _is_cuda(device: Any) -> bool:
    return (isinstance(device, str) and device.startswith("cuda")) or getattr(device, "type", None) == "cuda"


class CpuGenerators:
    """Megatron's tracker of generator states, with the CPU's generator."""

    def __init__(self) -> None:
        self.states_: dict[str, Tensor] = {}

    def is_initialized(self) -> bool:
        return True

    def reset(self) -> None:
        self.states_ = {}

    def get_states(self) -> dict[str, Tensor]:
        return dict(self.states_)

    def set_states(self, states: dict[str, Tensor]) -> None:
        self.states_ = states

    def add(self, name: str, seed: int) -> None:
        self.states_[name] = torch.Generator().manual_seed(seed).get_state()

    @contextmanager
    def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
        outside = torch.get_rng_state()
        torch.set_rng_state(self.states_.get(name, outside))
        try:
            yield
        finally:
            if name in self.states_:
                self.states_[name] = torch.get_rng_state()
            torch.set_rng_state(outside)


class _Stream:
    """A stream or an event: everything has already happened."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: self


def install() -> None:
    """For the whole of this process, once, before a model is built."""
    cuda: Any = torch.cuda
    cuda.current_device = lambda: torch.device("cpu")
    # A function of its own for each name: TorchDynamo refuses to find one object under two.
    for name in ("synchronize", "empty_cache", "manual_seed"):
        setattr(cuda, name, lambda *args: None)
    for name in ("Stream", "Event", "current_stream", "default_stream"):
        setattr(cuda, name, lambda *args, **options: _Stream())
    cuda.stream = lambda *args: nullcontext()
    _replace_generators()
    mode: Any = OnCpu()
    mode.__enter__()


def _replace_generators() -> None:
    import megatron.core.tensor_parallel.random as generators
    import megatron.core.transformer.moe.moe_utils as moe

    # Without Transformer Engine 0.16.1 reads this name before it looks whether there is one.
    moe.te_general_gemm = getattr(moe, "te_general_gemm", None)
    generators._get_cuda_rng_state = lambda *args, **options: torch.get_rng_state()
    generators._set_cuda_rng_state = lambda state, *args, **options: torch.set_rng_state(state)
    generators._CUDA_RNG_STATE_TRACKER = CpuGenerators()
    generators._CUDA_RNG_STATE_TRACKER_INITIALIZED = True
