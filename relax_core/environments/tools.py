"""Calling a tool: whatever it does, what comes of it is a text that the policy can read."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relax_core.errors import FOREIGN

LONGEST_MESSAGE = 200


@dataclass(frozen=True, slots=True)
class Result:
    """What a call came to. `problem` is "", `error` (it raised) or `timeout`; `text` then says what.

    `value` is what the tool gave, `error` what it raised.
    """

    text: str
    problem: str = ""
    value: Any = None
    error: BaseException | None = None


async def call(tool: Callable[..., Any], arguments: tuple[Any, ...], seconds: float) -> Result:
    """The tool's result as text. A plain function runs in a thread of its own, so that one that blocks stops nobody.

    A tool that is too late is not waited for: a coroutine is cancelled, a thread is left behind.
    """
    running: asyncio.Future[Any] = asyncio.ensure_future(_started(tool, arguments))
    try:
        await asyncio.wait([running], timeout=seconds)
    finally:
        late = not running.done()
        running.cancel()
    if late:
        return Result(f"no result within {seconds:g} s", "timeout")
    try:
        value = running.result()
        return Result(readable(value), value=value)
    except (*FOREIGN, asyncio.CancelledError) as error:
        return Result(_told(error), "error", error=error)


def readable(value: Any) -> str:
    """A result as text that every tokenizer takes: bytes as UTF-8, what is invalid replaced; nothing for None."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    return "" if value is None else str(value).encode("utf-8", "replace").decode("utf-8")


async def _started(tool: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    if inspect.iscoroutinefunction(tool):
        return await tool(*arguments)
    result = await _in_thread(tool, arguments)
    return await result if inspect.isawaitable(result) else result


async def _in_thread(tool: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Not in a pool: threads that hang would fill it, and a process that ends would wait for them."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def work() -> None:
        try:
            settle, value = done.set_result, tool(*arguments)
        except FOREIGN as error:
            settle, value = done.set_exception, _raisable(error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(lambda: None if done.done() else settle(value))

    threading.Thread(target=work, daemon=True, name="tool").start()
    return await done


def _raisable(error: BaseException) -> BaseException:
    """No future takes a StopIteration, and a SystemExit in one would end the loop."""
    return RuntimeError(_told(error)) if isinstance(error, StopIteration | SystemExit) else error


def _told(error: BaseException) -> str:
    """`Type: message`, on one line and not long."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return readable(text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}…").rstrip(": ")
