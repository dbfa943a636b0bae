"""Weights through vLLM's weight-transfer interface: CUDA IPC on one device, a broadcast group between devices."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

from relax_core.rollout.vllm.manifest import Manifest
from relax_core.rollout.vllm.update import Call, compare

LOOPBACK = "127.0.0.1"


class Source(WeightSource):  # type: ignore[misc]
    """The weights of the update that is going on; references, not copies."""

    weights: list[tuple[str, Tensor]]

    def metadata(self) -> list[ParamMeta]:
        """Name, type and shape of each."""
        return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self.weights]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Each name and tensor."""
        return iter(self.weights)


class Transfer:
    """The trainer's end of a `backend` of vLLM's (`ipc`, `nccl`) or of the one over gloo."""

    def __init__(self, call: Call, backend: str, workers: int, chunk_bytes: int) -> None:
        self._call, self._source = call, Source()
        self._sender = _sender(backend, 1 + workers, chunk_bytes, _Client(call), self._source)

    def send(self, weights: Iterable[tuple[str, Tensor]], *, check: bool) -> None:
        """All of `weights`; raises RunError when a worker did not get exactly what was sent."""
        manifest = Manifest(check)
        self._source.weights = [manifest.add(item) for item in weights]
        self._call("begin_counting", check)
        self._sender.send_weights()
        for report in self._call("end_counting"):
            compare(manifest, *report)


class _Client:
    """What a sender of vLLM's asks of the workers."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._call("init_weight_transfer_engine", init_info)

    def start_weight_update(self) -> None:
        self._call("start_weight_update")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._call("update_weights", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._call("finish_weight_update")


def _sender(backend: str, size: int, chunk_bytes: int, client: _Client, source: Source) -> Any:
    if backend == "ipc":
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo, IPCTrainerWeightTransferEngine

        ipc = IPCTrainerInitInfo(rank=0, packed=True, packed_buffer_size_bytes=chunk_bytes)
        return IPCTrainerWeightTransferEngine.trainer_init(ipc, client=client, source=source)
    if backend == "nccl":
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLTrainerWeightTransferEngine

        nccl = NCCLTrainerInitInfo(LOOPBACK, _port(), size, packed_buffer_size_bytes=chunk_bytes, rank=0)
        return NCCLTrainerWeightTransferEngine.trainer_init(nccl, client=client, source=source)
    from relax_core.rollout.vllm.gloo import GlooSender, GlooTrainerInit

    return GlooSender.trainer_init(
        GlooTrainerInit(LOOPBACK, _port(), size, chunk_bytes, rank=0), client=client, source=source
    )


def _port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port
