"""Calls to an engine in another process end when the process does: vLLM's client would wait for an answer for ever."""

from __future__ import annotations

import threading
from multiprocessing.connection import wait
from typing import Any


def watch(client: Any) -> None:
    """Fail whatever waits in `client` (vLLM's `SyncMPClient`) with `EngineDeadError` once one of its processes has ended."""
    sentinels = [process.sentinel for process in client.resources.engine_manager.processes]
    waiting = (client.resources, client.outputs_queue, client.utility_results)
    threading.Thread(target=_fail, args=(sentinels, *waiting), daemon=True, name="relax-engine-watch").start()


def _fail(sentinels: list[int], resources: Any, outputs: Any, calls: dict[int, Any]) -> None:
    from vllm.v1.engine.exceptions import EngineDeadError

    wait(sentinels)
    resources.engine_dead = True
    outputs.put(EngineDeadError())
    for future in list(calls.values()):
        if not future.done():
            future.set_exception(EngineDeadError())
