"""A weight-transfer engine of vLLM's interface over gloo: what its NCCL engine does, for machines without a GPU.

Importing this module registers the receiving end in the process that imports it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, ClassVar

import torch
from torch import Tensor, distributed
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from relax_core.rollout.vllm.update import chunks

BACKEND = "relax_gloo"
PATIENCE = timedelta(seconds=120)


@dataclass
class GlooInit(WeightTransferInitInfo):  # type: ignore[misc]
    """Where the group meets; the trainer is its rank 0."""

    address: str
    port: int
    world_size: int


@dataclass
class GlooChunk(WeightTransferUpdateInfo):  # type: ignore[misc]
    """The tensors that are broadcast next."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


class GlooReceiver(WeightTransferEngine):  # type: ignore[misc]
    """The worker's end."""

    init_info_cls, update_info_cls = GlooInit, GlooChunk

    def init_transfer_engine(self, init_info: GlooInit) -> None:
        """Join the group, behind the trainer."""
        self._group = _Group(init_info, 1 + self.parallel_config.rank)

    def start_weight_update(self) -> None:
        """Make the model ready to be loaded again."""
        from vllm.model_executor.model_loader.reload.layerwise import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Take one chunk; the inherited one synchronises an accelerator, which a CPU build of torch refuses."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: GlooChunk) -> None:
        """Load the tensors as they come."""
        self.model.load_weights(self._incoming(update_info))

    def finish_weight_update(self) -> None:
        """The layers that wait for nothing more."""
        from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Leave the group."""
        del self._group

    def _incoming(self, chunk: GlooChunk) -> Iterator[tuple[str, Tensor]]:
        for name, dtype, shape in zip(chunk.names, chunk.dtypes, chunk.shapes, strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            self._group.broadcast(tensor)
            yield name, tensor


@dataclass
class GlooTrainerInit(TrainerInitInfo):  # type: ignore[misc]
    """Where the group meets, and the bytes of a chunk."""

    backend: ClassVar[str] = BACKEND

    address: str
    port: int
    world_size: int
    chunk_bytes: int


class GlooSender(TrainerWeightTransferEngine):  # type: ignore[misc]
    """The trainer's end."""

    init_info_cls = GlooTrainerInit

    @classmethod
    def trainer_init(cls, init_info: GlooTrainerInit, *, client: Any, source: Any = None) -> GlooSender:
        """Meet the workers, who wait inside `init_weight_transfer_engine`."""
        engine: GlooSender = cls(client=client, source=source)
        meeting = GlooInit(init_info.address, init_info.port, init_info.world_size)
        engine._chunk_bytes, engine._thread = init_info.chunk_bytes, ThreadPoolExecutor(max_workers=1)
        joined = engine._thread.submit(client.init_weight_transfer_engine, asdict(meeting))
        engine._group = _Group(meeting, 0)
        joined.result()
        return engine

    def send_weights(self) -> None:
        """Every weight of the source, a chunk at a time: the workers receive while this end broadcasts."""
        self.client.start_weight_update()
        for chunk in chunks(self.source, self._chunk_bytes):
            dtypes = [str(tensor.dtype).removeprefix("torch.") for _, tensor in chunk]
            info = GlooChunk([name for name, _ in chunk], dtypes, [list(tensor.shape) for _, tensor in chunk])
            received = self._thread.submit(self.client.update_weights, asdict(info))
            for _, tensor in chunk:
                self._group.broadcast(tensor.detach().contiguous())
            received.result()
        self.client.finish_weight_update()


class _Group:
    """A gloo group of its own, beside whatever groups the processes have."""

    def __init__(self, meeting: GlooInit, rank: int) -> None:
        size = meeting.world_size
        tcp_store: Any = distributed.TCPStore  # type: ignore[attr-defined]
        store = tcp_store(meeting.address, meeting.port, size, is_master=rank == 0, timeout=PATIENCE)
        self._store, self._group = store, distributed.ProcessGroupGloo(store, rank, size, PATIENCE)

    def broadcast(self, tensor: Tensor) -> None:
        """From the trainer into `tensor`."""
        options = distributed.BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        self._group.broadcast([tensor], options).wait()  # type: ignore[attr-defined]


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, GlooReceiver)
