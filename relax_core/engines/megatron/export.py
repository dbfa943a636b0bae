"""A directory that `from_pretrained` loads, written while the weights arrive."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

FILE_SIZE = 2**32
"""Bytes of weights in a file."""
COPIED = ("config.json", "generation_config.json")


def write_model(
    weights: Iterable[tuple[str, Tensor]], like: Path, directory: Path, *, value_head: bool = False
) -> None:
    """Weights in files of `FILE_SIZE`, with the configuration of the directory `like`; one file is in memory at once."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        if (like / name).is_file():
            shutil.copyfile(like / name, directory / name)
    if value_head:
        _describe_value_head(directory / "config.json")
    files = _write_files(weights, directory)
    if len(set(files.values())) == 1:
        (directory / next(iter(files.values()))).replace(directory / "model.safetensors")
    else:
        index = {"metadata": {}, "weight_map": files}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def _write_files(weights: Iterable[tuple[str, Tensor]], directory: Path) -> dict[str, str]:
    """Which file has which tensor."""
    files: dict[str, str] = {}
    held: dict[str, Tensor] = {}
    number, size = 1, 0
    for name, tensor in weights:
        if held and size + tensor.nbytes > FILE_SIZE:
            save_file(held, directory / _file(number), metadata=FORMAT)
            held, number, size = {}, number + 1, 0
        held[name], files[name], size = tensor.contiguous(), _file(number), size + tensor.nbytes
    save_file(held, directory / _file(number), metadata=FORMAT)
    return files


FORMAT = {"format": "pt"}


def _file(number: int) -> str:
    return f"model-{number:05d}.safetensors"


def _describe_value_head(path: Path) -> None:
    config = json.loads(path.read_text())
    kind = str(config["architectures"][0]).replace("ForCausalLM", "ForTokenClassification")
    path.write_text(json.dumps({**config, "architectures": [kind], "num_labels": 1}, indent=2))
