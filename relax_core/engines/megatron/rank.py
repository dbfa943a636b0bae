"""A rank's process: commands from the driver, one at a time, until it is told to end or the driver is gone."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

from relax_core.engines.wire import receive, send
from relax_core.errors import RelaxError, describe


def main(commands: int, lifeline: int) -> None:
    """`commands` and `lifeline` are file descriptors; the second is held open by the driver for as long as it lives."""
    Thread(target=_end_with_the_driver, args=(lifeline,), daemon=True).start()
    connection: Connection[Any, Any] = Connection(commands)
    try:
        _serve(connection)
    except (EOFError, ConnectionError):
        pass
    except BaseException as error:
        kind = type(error).__name__ if isinstance(error, RelaxError) else ""
        send(connection, {"error": error.message if isinstance(error, RelaxError) else describe(error), "kind": kind})
    _leave(0)


def _serve(connection: Connection[Any, Any]) -> None:
    from relax_core.engines.megatron.worker import Worker

    worker = Worker(**receive(connection))
    send(connection, {"value": None})
    while (message := receive(connection))["command"] != "close":
        result = getattr(worker, message.pop("command"))(**message)
        if isinstance(result, Iterator):
            for item in result:
                send(connection, {"item": item})
            result = None
        send(connection, {"value": result})
    worker.leave()


def _end_with_the_driver(lifeline: int) -> None:
    """Not even a rank that waits in a collective outlives the driver."""
    os.read(lifeline, 1)
    _leave(1)


def _leave(code: int) -> None:
    """Without tearing down: gloo's threads race the interpreter's exit, and under load it aborts there.

    The process with which Megatron's checkpoints are written goes along: it would not notice.
    """
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(code)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
