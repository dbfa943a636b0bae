"""The sending end of a weight update: chunks of bounded size, and a comparison of what was sent with what came."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from relax_core.errors import RunError
from relax_core.rollout.vllm.manifest import Manifest

Call = Callable[..., list[Any]]
WHO = "vLLM engine"
SEND_ALL = "send every named parameter of a model with the same config, once"


def send(call: Call, weights: Iterable[tuple[str, Tensor]], chunk_bytes: int, *, by_bytes: bool, check: bool) -> None:
    """Send `weights` to every worker through `call(method, *arguments)`.

    At most `chunk_bytes` (or one tensor) are on their way at a time. Raises RunError when a worker did not get exactly
    what was sent, or when a parameter of the engine's was left as it was.
    """
    manifest = Manifest(check)
    call("begin_update", check)
    for chunk in chunks(map(manifest.add, weights), chunk_bytes):
        if by_bytes:
            call("receive_bytes", _packed(chunk))
        else:
            call("receive", chunk)
    for count, digest, missing in call("finish_update"):
        compare(manifest, count, digest, missing)


def fitting(
    weights: Iterable[tuple[str, Tensor]], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, Tensor]]:
    """`weights`, each once, all of them, and each of its shape in `shapes`; raises RunError at the first that is not."""
    left = dict(shapes)
    for name, tensor in weights:
        wanted = left.pop(name, None)
        if wanted != tuple(tensor.shape):
            has = "no such weight left to fill" if wanted is None else f"one of shape {wanted}"
            problem = f"weight '{name}' of shape {tuple(tensor.shape)} was given; the model has {has}"
            raise RunError(problem, who=WHO, fix=SEND_ALL)
        yield name, tensor
    if left:
        raise RunError(f"the update lacks {_shown(sorted(left))}", who=WHO, fix=SEND_ALL)


def chunks(weights: Iterable[tuple[str, Tensor]], limit: int) -> Iterator[list[tuple[str, Tensor]]]:
    """Lists of named tensors of `limit` bytes at most; a larger tensor goes alone."""
    chunk: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in weights:
        if chunk and size + tensor.nbytes > limit:
            yield chunk
            chunk, size = [], 0
        chunk.append((name, tensor))
        size += tensor.nbytes
    if chunk:
        yield chunk


def _packed(chunk: list[tuple[str, Tensor]]) -> bytes:
    from safetensors.torch import save

    return save({name: tensor.detach().to("cpu", memory_format=torch.contiguous_format) for name, tensor in chunk})


def compare(sent: Manifest, count: int, digest: str, missing: list[str]) -> None:
    """Raise RunError unless a worker's report is of what was sent, and nothing was left as it was."""
    if (count, digest) != (sent.count, sent.digest):
        problem = f"{sent.count} weights were sent ({sent.digest}), {count} came ({digest})"
        raise RunError(problem, who=WHO, fix="look for what ends or changes messages between the processes")
    if missing:
        raise RunError(f"the update left as they were {_shown(missing)}", who=WHO, fix=SEND_ALL)


def _shown(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
