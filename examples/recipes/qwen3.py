"""Qwen3 (arXiv:2505.09388), downloaded from the Hugging Face hub by the first run that names it."""

from __future__ import annotations

import shutil
from pathlib import Path

from relax_core.errors import LoadError

PATTERNS = ["*.json", "*.safetensors", "merges.txt"]
"""Weights, configuration and tokenizer."""


def qwen3_0_6b(directory: Path) -> None:
    """Write Qwen3-0.6B; 1.5 GB."""
    fetch("Qwen/Qwen3-0.6B", directory)


def qwen3_4b(directory: Path) -> None:
    """Write Qwen3-4B; 8 GB."""
    fetch("Qwen/Qwen3-4B", directory)


def fetch(name: str, directory: Path) -> None:
    """Write the model of this name, as the hub's own cache has it or gets it. LoadError where neither can be."""
    from httpx import HTTPError
    from huggingface_hub import snapshot_download

    try:
        downloaded = snapshot_download(name, allow_patterns=PATTERNS)
    except (OSError, HTTPError) as error:
        fix = f"hf download {name} --local-dir DIRECTORY where there is a network, and write DIRECTORY as model.path"
        what = f"{name} could not be downloaded: {' '.join(str(error).split()).rstrip('.')}"
        raise LoadError(what, who="examples/recipes/qwen3.py", fix=fix) from error
    shutil.copytree(downloaded, directory, dirs_exist_ok=True)
