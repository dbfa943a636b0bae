"""What a device can do at most, as its maker says, and what part of it a run is assumed to get."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """`memory` in bytes, None for a host's; dense `flops` a second; `bandwidth` of its memory in bytes a second."""

    name: str
    memory: int | None
    flops: float
    bandwidth: float
    source: str

    @property
    def is_gpu(self) -> bool:
        return self.memory is not None


_DATASHEET = "NVIDIA's data sheet, dense bfloat16"
DEVICES = {
    each.name: each
    for each in (
        Device("a100", 80 * 10**9, 312e12, 2.039e12, f"{_DATASHEET}, A100 80 GB SXM"),
        Device("h100", 80 * 10**9, 989e12, 3.35e12, f"{_DATASHEET}, H100 80 GB SXM"),
        Device("h200", 141 * 10**9, 989e12, 4.8e12, f"{_DATASHEET}, H200 141 GB SXM"),
        Device("l40s", 48 * 10**9, 362e12, 0.864e12, f"{_DATASHEET}, L40S 48 GB"),
        Device(
            "cpu", None, 149e9, 7.5e9, "measured: float32 products and sums of PyTorch on one core of a busy machine"
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What no configuration says. They are printed with every estimate.

    `training` and `prefill` are parts of the peak arithmetic, `decoding` is a part of the memory's bandwidth; `link` is
    what one copy of the weights is sent with, in bytes a second. `process` is what CUDA, NCCL and fragments take of a
    GPU in each process of a trainer, and `engine` what vLLM takes beside weights and cache, in bytes.
    """

    training: float = 0.4
    prefill: float = 0.5
    decoding: float = 0.6
    link: float = 25e9
    process: float = 3e9
    engine: float = 3e9
