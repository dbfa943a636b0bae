"""Weights between Hugging Face's names and whole tensors and Megatron's names and shards, one parameter at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from relax_core.errors import LoadError


@dataclass(frozen=True, slots=True)
class Source:
    """What a parameter of Megatron's is made of: tensors of Hugging Face's, split by tensor parallelism along `dim`.

    `dim` None: the same on every rank. Several are laid in one, `heads` group by group (the queries of a key, the key,
    the value), else one after the other.
    """

    names: tuple[str, ...]
    dim: int | None = None
    heads: bool = False


Make = Callable[[str], Source]
QKV = tuple(f"self_attn.{x}_proj.weight" for x in "qkv")
IN_LAYER: dict[str, tuple[tuple[str, ...], int | None]] = {
    r"(input_layernorm\.|self_attention\.linear_qkv\.layer_norm_)weight": (("input_layernorm.weight",), None),
    r"(pre_mlp_layernorm\.|mlp\.linear_fc1\.layer_norm_)weight": (("post_attention_layernorm.weight",), None),
    r"self_attention\.linear_qkv\.weight": (QKV, 0),
    r"self_attention\.linear_proj\.weight": (("self_attn.o_proj.weight",), 1),
    r"self_attention\.([qk])_layernorm\.weight": ((r"self_attn.\1_norm.weight",), None),
    r"mlp\.linear_fc1\.weight": (("mlp.gate_proj.weight", "mlp.up_proj.weight"), 0),
    r"mlp\.linear_fc2\.weight": (("mlp.down_proj.weight",), 1),
    r"mlp\.router\.weight": (("mlp.gate.weight",), None),
    r"mlp\.experts\.local_experts\.(\d+)\.linear_fc1\.weight": (
        (r"mlp.experts.\1.gate_proj.weight", r"mlp.experts.\1.up_proj.weight"),
        0,
    ),
    r"mlp\.experts\.local_experts\.(\d+)\.linear_fc2\.weight": ((r"mlp.experts.\1.down_proj.weight",), 1),
}


def source(name: str, hf: Mapping[str, Any]) -> Source:
    """Where a parameter of the whole model comes from; `name` counts its layers over all pipeline stages."""
    if hf.get("critic") and name.startswith("output_layer."):
        return Source((name.replace("output_layer", "score"),))
    if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        tied = hf["tie_word_embeddings"] or name.startswith("embedding")
        return Source(("model.embed_tokens.weight" if tied else "lm_head.weight",), 0)
    if name == "decoder.final_layernorm.weight":
        return Source(("model.norm.weight",))
    _, _, layer, rest = name.split(".", 3)
    for pattern, (names, dim) in IN_LAYER.items():
        if found := re.fullmatch(pattern, rest):
            made = tuple(f"model.layers.{layer}.{found.expand(each)}" for each in names)
            return Source(made, dim, heads=names == QKV)
    raise KeyError(name)


def joined(parts: list[Tensor], where: Source, hf: Mapping[str, Any]) -> Tensor:
    """Megatron's tensor of a rank from the rank's parts of Hugging Face's."""
    if not where.heads:
        return torch.cat(parts) if len(parts) > 1 else parts[0]
    groups = parts[1].shape[0] // hf["head_dim"]
    return torch.cat([part.reshape(groups, -1, part.shape[-1]) for part in parts], 1).flatten(0, 1)


def parted(x: Tensor, where: Source, hf: Mapping[str, Any]) -> list[Tensor]:
    """The inverse of `joined`."""
    if not where.heads:
        return list(x.chunk(len(where.names)))
    size = hf["head_dim"]
    queries = hf["num_attention_heads"] // hf["num_key_value_heads"] * size
    rows = torch.split(x.reshape(-1, queries + 2 * size, x.shape[-1]), [queries, size, size], 1)
    return [each.flatten(0, 1) for each in rows]


class Checkpoint:
    """A directory of safetensors, read a part of a tensor at a time."""

    def __init__(self, directory: Path, who: str) -> None:
        index = directory / "model.safetensors.index.json"
        single = directory / "model.safetensors"
        if not index.is_file() and not single.is_file():
            fix = "save it with save_pretrained"
            raise LoadError(f"'{directory}' has no model.safetensors", who=who, fix=fix)
        self.directory, self.who = directory, who
        self.files: dict[str, str] = json.loads(index.read_text())["weight_map"] if index.is_file() else {}

    def read(self, name: str, dim: int | None, ranks: int, rank: int) -> Tensor | None:
        """Rank `rank`'s part of a tensor along `dim`, with rows of 0 past its end; None where there is no such tensor."""
        from safetensors import safe_open

        file: Any
        with safe_open(self.directory / self.files.get(name, "model.safetensors"), "pt") as file:
            if name not in file.keys():  # noqa: SIM118 (it is no mapping)
                return None
            found: Tensor = file.get_tensor(name) if dim is None else _part(file.get_slice(name), dim, ranks, rank)
            return found


def _part(whole: Any, dim: int, ranks: int, rank: int) -> Tensor:
    size = -(-int(whole.get_shape()[dim]) // ranks)
    span = slice(rank * size, (rank + 1) * size)
    found: Tensor = whole[span] if dim == 0 else whole[:, span]
    missing = size - found.shape[dim]
    return found if not missing else torch.cat([found, found.new_zeros(missing, *found.shape[1:])])


@torch.no_grad()
def load(model: Any, directory: Path, hf: Mapping[str, Any], who: str) -> None:
    """Fill this rank's parameters from a Hugging Face directory; a new critic's head starts at zero."""
    checkpoint = Checkpoint(directory, who)
    read = partial(_read, checkpoint, critic=bool(hf.get("critic")))
    for name, parameter in named(model):
        where = source(name, hf)
        parts = [read(each, where.dim) for each in where.names]
        if any(part is None for part in parts):
            parts = [parameter.new_zeros(parameter.shape)]
        parameter.copy_(joined([part for part in parts if part is not None], where, hf))


def _read(checkpoint: Checkpoint, name: str, dim: int | None, *, critic: bool) -> Tensor | None:
    ranks = parallel_state.get_tensor_model_parallel_world_size()
    found = checkpoint.read(name, dim, ranks, parallel_state.get_tensor_model_parallel_rank())
    if found is None and not (critic and name.startswith("score.")):
        raise LoadError(f"'{checkpoint.directory}' has no '{name}'", who=checkpoint.who, fix="give a complete model")
    return found


def named(model: Any) -> Iterator[tuple[str, Tensor]]:
    """This rank's parameters, by names that count the layers of all pipeline stages."""
    first = model.decoder.layers[0].layer_number - 1 if len(model.decoder.layers) else 0
    for name, parameter in model.named_parameters():
        yield re.sub(r"^(decoder\.layers\.)(\d+)", lambda found: f"{found[1]}{int(found[2]) + first}", name), parameter


def nonfinite(model: Any, hf: Mapping[str, Any]) -> Iterator[str]:
    """Hugging Face's names of the parameters whose gradients on this rank, as a schedule left them, are not finite."""
    for name, parameter in named(model):
        where = source(name, hf)
        gradient: Tensor = parameter.main_grad  # type: ignore[attr-defined]
        for each, part in zip(where.names, parted(gradient, where, hf), strict=True):
            if not part.isfinite().all():
                yield each


@torch.no_grad()
def export(model: Any, hf: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """This pipeline stage's weights in Hugging Face form; all of its tensor-parallel ranks take part, and all get them."""
    for name, parameter in named(model):
        where = source(name, hf)
        if name == "output_layer.weight" and hf["tie_word_embeddings"] and not hf.get("critic"):
            continue
        for each, part in zip(where.names, parted(parameter.detach(), where, hf), strict=True):
            whole = part if where.dim is None else _gathered(part, where.dim)
            yield each, whole[: hf["vocab_size"]] if "layers" not in each and where.dim == 0 else whole


def _gathered(part: Tensor, dim: int) -> Tensor:
    group = parallel_state.get_tensor_model_parallel_group()
    parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(group.size())]
    dist.all_gather(parts, part.contiguous(), group=group)
    return torch.cat(parts, dim)
