"""Reading what was saved, without running anything of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from relax_core.errors import LoadError


def read_state(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Tensors and plain values that `torch.save` wrote; raises whatever is wrong with the file (see `readable`)."""
    found: dict[str, Any] = torch.load(path, weights_only=True, map_location=device)
    return found


@contextmanager
def readable(checkpoint: Path) -> Iterator[None]:
    """Whatever a library raises inside is a LoadError that names the checkpoint."""
    try:
        yield
    except LoadError:
        raise
    except Exception as error:
        problem = f"checkpoint '{checkpoint}' cannot be read: {reason(error)}"
        raise LoadError(problem, who="--resume", fix="go on from another one: move this one away") from None


def reason(error: BaseException) -> str:
    """A library's message, in a line. The one about pickles suggests to run them."""
    if isinstance(error, UnpicklingError):
        return "it holds a pickle of more than numbers, and nothing of it was run"
    return " ".join(str(error).split())[:300]
