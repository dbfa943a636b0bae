"""The processes of a training engine: started together, asked together, ended together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

from relax_core import errors
from relax_core.engines.wire import receive, send
from relax_core.errors import RunError

PATIENCE = 3600.0
"""Seconds that one command may take: a step of a large model, or its checkpoint."""
GRACE = 10.0
"""Seconds in which a rank that died shows itself, once another has failed for want of it."""
ENDING = 10.0
"""Seconds that ranks have for leaving by themselves."""


@dataclass(slots=True, eq=False)
class _Rank:
    number: int
    process: subprocess.Popen[bytes]
    connection: Connection[Any, Any]
    log: Path


class RankGroup:
    """`size` processes with a `Worker` each, in a layout of these `sizes`; they end with this process, however it ends."""

    name = "rank"

    def __init__(self, size: int, sizes: Mapping[str, int]) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="relax-ranks-")
        self._lifeline, self._held = os.pipe()
        os.set_inheritable(self._lifeline, True)
        self.ranks = [self._start(number, size) for number in range(size)]
        self._finalizer = weakref.finalize(self, _end, self.ranks, self._held, self._lifeline, self._directory)
        meeting = (Path(self._directory.name) / "meeting").as_uri()
        for each in self.ranks:
            send(each.connection, {"rank": each.number, "world": size, "meeting": meeting, "sizes": dict(sizes)})
        self._collect("start")

    def call(self, command: str, **arguments: Any) -> list[Any]:
        """Every rank's answer to a command, in the order of ranks. Raises what a rank raised; names a rank that died."""
        self._ask(command, arguments)
        return self._collect(command)

    def stream(self, command: str, **arguments: Any) -> Iterator[Any]:
        """What the ranks give to a command piece by piece: all pieces of a rank, then those of the next."""
        self._ask(command, arguments)
        for each in self.ranks:
            while "item" in (message := self._next(each, command)):
                yield message["item"]

    def close(self) -> None:
        """End the processes; what they were told before is done first."""
        if self._finalizer.alive:
            self._ask("close", {})
            deadline = time.monotonic() + ENDING
            for each in self.ranks:
                _within(each.process, deadline - time.monotonic())
            self._finalizer()

    def _start(self, number: int, size: int) -> _Rank:
        mine, its = Pipe()
        os.set_inheritable(its.fileno(), True)
        descriptors = (its.fileno(), self._lifeline)
        log = Path(self._directory.name) / f"rank-{number}.log"
        command = [sys.executable, "-m", "relax_core.engines.megatron.rank", *map(str, descriptors)]
        with log.open("wb") as output:
            # A session of its own: Ctrl-C is the driver's to answer, which still needs its ranks for a checkpoint.
            process = subprocess.Popen(
                command, env=_environment(number, size), pass_fds=descriptors, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        its.close()
        return _Rank(number, process, mine, log)

    def _ask(self, command: str, arguments: Mapping[str, Any]) -> None:
        if not self._finalizer.alive:
            self._fail(f"'{command}' is asked of ranks that have ended")
        for each in self.ranks:
            try:
                send(each.connection, {"command": command, **arguments})
            except OSError:
                continue  # it died, which reading its answer will tell

    def _collect(self, command: str) -> list[Any]:
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + PATIENCE
        while missing := [each for each in self.ranks if each.number not in answers]:
            ready = wait([each.connection for each in missing], max(0.0, deadline - time.monotonic()))
            if not ready:
                self._fail(f"rank {missing[0].number} did not answer '{command}' in {PATIENCE:.0f} s")
            for each in missing:
                if each.connection in ready:
                    answers[each.number] = self._next(each, command)["value"]
        return [answers[each.number] for each in self.ranks]

    def _next(self, rank: _Rank, command: str) -> dict[str, Any]:
        if not rank.connection.poll(PATIENCE):
            self._fail(f"rank {rank.number} did not answer '{command}' in {PATIENCE:.0f} s")
        message = self._read(rank, command)
        if "error" in message:
            self._failed(rank, message, command)
        return message

    def _read(self, rank: _Rank, command: str) -> dict[str, Any]:
        try:
            return receive(rank.connection)
        except (EOFError, OSError):
            self._died(rank, command)

    def _failed(self, rank: _Rank, message: dict[str, Any], command: str) -> NoReturn:
        """A rank raised something; where that is for want of another rank, the other one is to blame."""
        deadline = time.monotonic() + GRACE
        for other in self.ranks:
            if not message["kind"] and other is not rank and other.connection.poll(max(0, deadline - time.monotonic())):
                said = self._read(other, command)
                rank, message = (other, said) if said.get("kind") else (rank, message)
        if kind := message["kind"]:
            self._finalizer()
            raise getattr(errors, kind)(message["error"]) from None
        self._fail(f"rank {rank.number} of {len(self.ranks)} failed in '{command}': {message['error']}")

    def _died(self, rank: _Rank, command: str) -> NoReturn:
        code = _within(rank.process, GRACE)
        how = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        last = rank.log.read_text(errors="replace").strip().splitlines()[-1:] if code and code > 0 else []
        self._fail(": ".join([f"rank {rank.number} of {len(self.ranks)} {how} during '{command}'", *last]))

    def _fail(self, what: str) -> NoReturn:
        self._finalizer()
        raise RunError(what, who="megatron engine", fix="go on from the last checkpoint with --resume") from None


def _environment(number: int, size: int) -> dict[str, str]:
    """As torchrun sets it, with which the ranks of one machine find each other; threads are the ranks' to share."""
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // size)))
    places = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(size)}
    modules = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "OMP_NUM_THREADS": threads}
    return {"GLOO_SOCKET_IFNAME": "lo", "CUDA_DEVICE_MAX_CONNECTIONS": "1", **os.environ, **places, **modules}


def _within(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return None


def _end(ranks: list[_Rank], held: int, lifeline: int, directory: tempfile.TemporaryDirectory[str]) -> None:
    os.close(held)
    os.close(lifeline)
    for each in ranks:
        # Its session is its own: what it has started ends with it, even where it was killed itself.
        with suppress(ProcessLookupError):
            os.killpg(each.process.pid, signal.SIGKILL)
        each.process.wait()
        each.connection.close()
    directory.cleanup()
