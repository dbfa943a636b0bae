"""What the driver and the ranks send each other: plain values and tensors, never an object that is executed on arrival."""

from __future__ import annotations

from io import BytesIO
from multiprocessing.connection import Connection
from typing import Any

import torch


def encode(message: dict[str, Any]) -> bytes:
    """A message as bytes."""
    buffer = BytesIO()
    torch.save(message, buffer)
    return buffer.getvalue()


def decode(data: bytes) -> dict[str, Any]:
    """The message of `encode`, on the CPU. Raises UnpicklingError for what is not plain."""
    message: dict[str, Any] = torch.load(BytesIO(data), weights_only=True, map_location="cpu")
    return message


def send(connection: Connection[Any, Any], message: dict[str, Any]) -> None:
    """One message."""
    connection.send_bytes(encode(message))


def receive(connection: Connection[Any, Any]) -> dict[str, Any]:
    """The next message. Raises EOFError when the other end is gone."""
    return decode(connection.recv_bytes())
