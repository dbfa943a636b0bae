"""Where a model is: a directory that is there, or one that a builder writes into the cache, once."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from relax_core.engines.hf_model import check_directory
from relax_core.errors import FOREIGN, LoadError, RelaxError, describe
from relax_core.references import load_callable


def model_directory(reference: str, *, who: str, base: Path, cache: Path) -> Path:
    """The directory that `reference` means: a path (from `base`, then from here), or `file.py:function`.

    A builder is called with an empty directory and writes model and tokenizer there, as `save_pretrained` does.
    Raises `LoadError`, naming the setting `who`.
    """
    if ":" in reference:
        return _built(load_callable(reference, who=who, base=base), reference, who, cache)
    beside = base / reference
    path = beside if beside.is_dir() else Path(reference).expanduser()
    check_directory(path, who=who)
    return path


def _built(builder: Callable[..., Any], reference: str, who: str, cache: Path) -> Path:
    directory = cache / _name(builder)
    if directory.is_dir():
        return directory
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".building-") as temporary:
            unfinished = Path(temporary) / directory.name
            unfinished.mkdir()
            builder(unfinished)
            check_directory(unfinished, who=who)
            _publish(unfinished, directory)
    except RelaxError:
        raise
    except OSError as error:
        raise LoadError(f"'{cache}' cannot be written: {error.strerror}", who="model.cache_dir") from None
    except FOREIGN as error:
        raise LoadError(f"'{reference}' raised {describe(error)}", who=who, fix="correct the builder") from error
    return directory


def _name(builder: Callable[..., Any]) -> str:
    """Changes with the builder's source, so that what an older one made is not taken for its work."""
    source = Path(inspect.getsourcefile(builder) or "")
    digest = sha256(source.read_bytes()).hexdigest()[:12]
    return f"{source.stem}-{getattr(builder, '__name__', 'build')}-{digest}"


def _publish(unfinished: Path, directory: Path) -> None:
    """Move a complete directory into place; one that another process finished first stays."""
    try:
        unfinished.rename(directory)
    except OSError:
        if not directory.is_dir():
            raise
