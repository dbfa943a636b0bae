"""What the driver and the ranks send each other: plain values and tensors, never an object that is executed on arrival."""

from __future__ import annotations

from io import BytesIO
from multiprocessing.connection import Connection
from typing import Any

import torch


def send(connection: Connection[Any, Any], message: dict[str, Any]) -> None:
    """One message."""
    buffer = BytesIO()
    torch.save(message, buffer)
    connection.send_bytes(buffer.getbuffer())


def receive(connection: Connection[Any, Any]) -> dict[str, Any]:
    """The next message, on the CPU. Raises EOFError when the other end is gone, UnpicklingError for what is not plain."""
    message: dict[str, Any] = torch.load(BytesIO(connection.recv_bytes()), weights_only=True, map_location="cpu")
    return message
