"""What was sent and what was received: the two ends of a weight update count alike."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor


class Manifest:
    """Counts tensors and digests their names and shapes, with `values` their bits too; the order does not matter."""

    def __init__(self, values: bool) -> None:
        self.values, self.count, self._sum = values, 0, 0

    def add(self, item: tuple[str, Tensor]) -> tuple[str, Tensor]:
        """Count a named tensor; gives it back."""
        name, tensor = item
        self.count += 1
        self._sum += zlib.crc32(f"{name} {tuple(tensor.shape)}".encode())
        if self.values:
            self._sum += zlib.crc32(name.encode()) * _bits(tensor)
        return item

    @property
    def digest(self) -> str:
        """64 bits in hexadecimal."""
        return f"{self._sum % 2**64:016x}"


def _bits(tensor: Tensor) -> int:
    """A sum of the tensor's bit patterns, each times its place: a value that is changed or moved changes it."""
    words = tensor.detach().contiguous().flatten().view({2: torch.int16, 4: torch.int32}[tensor.element_size()])
    places = torch.arange(1, words.numel() + 1, device=words.device)
    return int((words.long() * places).sum())
