"""The checkpoints of a run: written whole or not at all, kept to a number, and read over before they are gone on from."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from relax_core.errors import LoadError, RelaxError, RunError
from relax_core.orchestration.log import say, warn

MANIFEST, PARTIAL = "manifest.json", ".partial"
VERSION = 1


class Checkpoints:
    """`step_000012/` and the like in one directory; at most `keep` of them, 0 for all."""

    def __init__(self, directory: Path, keep: int = 0) -> None:
        self.directory, self.keep = directory, keep

    def write(self, step: int, fill: Callable[[Path], None]) -> Path:
        """Have `fill` write into a directory of a temporary name, seal it, and give it its own name.

        A whole one of that step stays as it is. Raises RunError where the disk does not take it; what was there before
        is still there then.
        """
        final = self.directory / f"step_{step:06d}"
        if final.exists() and not damage_of(final):
            return final
        partial = final.with_name(f".{final.name}{PARTIAL}")
        try:
            self._clear()
            partial.mkdir(parents=True)
            fill(partial)
            _seal(partial, step)
            shutil.rmtree(final, ignore_errors=True)
            partial.replace(final)
            _flush(self.directory)
        except RelaxError:
            raise
        except Exception as error:
            self._clear()
            problem = f"checkpoint '{final}' cannot be written: {getattr(error, 'strerror', None) or error}"
            raise RunError(problem, who="output.dir", fix="make room there, and go on with --resume") from None
        say("checkpoint", step=step, path=str(final))
        self._prune()
        return final

    def newest(self) -> Path:
        """The newest one that is whole; damaged ones are named on stderr and passed over. Raises LoadError for none."""
        for path in reversed(self.all()):
            if not (damage := damage_of(path)):
                return path
            warn(f"checkpoint '{path}' is damaged and passed over: {damage}")
        raise nothing_whole(self.directory.parent)

    def newest_or_none(self) -> Path | None:
        """As `newest`; None where there is none at all yet."""
        return self.newest() if self.all() else None

    def all(self) -> list[Path]:
        """By step."""
        return sorted(self.directory.glob("step_*"))

    def _clear(self) -> None:
        """Take away what was never finished."""
        for path in self.directory.glob(f".*{PARTIAL}"):
            shutil.rmtree(path, ignore_errors=True)

    def _prune(self) -> None:
        for path in self.all()[: -self.keep] if self.keep else ():
            shutil.rmtree(path, ignore_errors=True)


def nothing_whole(run: Path) -> LoadError:
    """A run directory without a checkpoint to go on from."""
    fix = "name the run directory of a saved run"
    return LoadError(f"'{run}' holds no whole checkpoint", who="--resume", fix=fix)


def step_of(path: Path) -> int:
    """The step after which a checkpoint was written."""
    return int(path.name.removeprefix("step_"))


def damage_of(path: Path) -> str:
    """What is wrong with a checkpoint, by its manifest; empty when nothing is."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        files: dict[str, Any] = manifest["files"]
        for name, expected in files.items():
            if (size := (path / name).stat().st_size) != expected["bytes"]:
                return f"{name} has {size} bytes of {expected['bytes']}"
            if _digest(path / name) != expected["sha256"]:
                return f"{name} is not what was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).relative_to(path)} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its {MANIFEST} cannot be read: {error}"
    return ""


def _seal(path: Path, step: int) -> None:
    """Everything on the disk, and a manifest of it."""
    found = {}
    for file in _files(path):
        found[str(file.relative_to(path))] = {"bytes": file.stat().st_size, "sha256": _digest(file)}
        _flush(file)
    manifest = path / MANIFEST
    manifest.write_text(json.dumps({"version": VERSION, "step": step, "files": found}, indent=2) + "\n")
    for each in (manifest, *(each for each in path.rglob("*") if each.is_dir()), path):
        _flush(each)


def _files(path: Path) -> Iterator[Path]:
    return (each for each in sorted(path.rglob("*")) if each.is_file())


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
