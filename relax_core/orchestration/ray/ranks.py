"""The processes of a training engine as Ray actors: started together, asked together, ended together."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray

from relax_core.config import TopologySection
from relax_core.engines.wire import decode, encode
from relax_core.errors import RelaxError
from relax_core.orchestration.ray.waiting import each, gather, value

ENDING = 10.0
"""Seconds that ranks have for leaving by themselves."""


class RankActor:
    """One rank: a `Worker` of an engine, asked by name."""

    def meeting(self) -> str:
        """An address of this rank's at which the others find it."""
        host = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((host, 0))
            return f"tcp://{host}:{probe.getsockname()[1]}"

    def devices(self) -> list[str]:
        """The GPUs that Ray gave to this process, on its node."""
        return [str(each) for each in ray.get_gpu_ids()]

    def begin(self, engine: str, **place: Any) -> int:
        """Start the worker; gives the process's number."""
        if engine == "megatron":
            from relax_core.engines.megatron.worker import Worker

            self.worker: Any = Worker(**place)
        else:
            from relax_core.engines.torch_worker import TorchWorker

            self.worker = TorchWorker()
        return os.getpid()

    def ask(self, message: bytes) -> bytes:
        """The answer to a command."""
        arguments = decode(message)
        return encode({"value": getattr(self.worker, arguments.pop("command"))(**arguments)})

    def give(self, message: bytes) -> Iterator[Any]:
        """What a command gives piece by piece."""
        arguments = decode(message)
        yield from getattr(self.worker, arguments.pop("command"))(**arguments)


class RayRanks:
    """A rank for each of `options` (what Ray is asked for), in a layout of these `sizes`; `ready` waits until they are."""

    def __init__(
        self,
        name: str,
        engine: str,
        options: Sequence[Mapping[str, Any]],
        sizes: Mapping[str, int],
        settings: TopologySection,
    ) -> None:
        self.name, self.timeout = name, settings.timeout
        actor = ray.remote(RankActor)
        self.actors = [actor.options(**each).remote() for each in options]
        self._begun = self._begin(engine, sizes, settings.start_timeout)

    def ready(self, timeout: float) -> list[int]:
        """Wait for the ranks: the numbers of their processes."""
        return gather(self._begun, "start", timeout)

    def devices(self, timeout: float) -> list[str]:
        """The GPUs of all ranks, in their order."""
        asked = {actor.devices.remote(): self._who(i) for i, actor in enumerate(self.actors)}
        return [device for devices in gather(asked, "start", timeout) for device in devices]

    def call(self, command: str, **arguments: Any) -> list[Any]:
        """Every rank's answer to a command, in the order of ranks."""
        message = ray.put(encode({"command": command, **arguments}))
        answers = gather({actor.ask.remote(message): self._who(i) for i, actor in enumerate(self.actors)}, command,
                         self.timeout)  # fmt: skip
        return [decode(answer)["value"] for answer in answers]

    def refs(self, command: str, **arguments: Any) -> Iterator[Any]:
        """References to what the ranks give to a command, where it lies in the cluster."""
        message = ray.put(encode({"command": command, **arguments}))
        streams = [actor.give.options(num_returns="streaming").remote(message) for actor in self.actors]
        for number, stream in enumerate(streams):
            yield from each(stream, self._who(number), command, self.timeout)

    def stream(self, command: str, **arguments: Any) -> Iterator[Any]:
        """What the ranks give to a command piece by piece."""
        for ref in self.refs(command, **arguments):
            yield value(ref, self.name, command)

    def close(self) -> None:
        """End the processes; what they were told before is done first."""
        with suppress(RelaxError):
            self.timeout = ENDING
            self.call("leave")
        for actor in self.actors:
            ray.kill(actor)

    def _begin(self, engine: str, sizes: Mapping[str, int], timeout: float) -> dict[Any, str]:
        world, first = len(self.actors), self.actors[0]
        meeting = gather({first.meeting.remote(): self._who(0)}, "start", timeout)[0]
        places = [{"rank": i, "world": world, "meeting": meeting, "sizes": dict(sizes)} for i in range(world)]
        return {
            actor.begin.remote(engine, **place): self._who(place["rank"])
            for actor, place in zip(self.actors, places, strict=True)
        }

    def _who(self, number: int) -> str:
        return f"{self.name} {number}"
