"""`make demo`: train, draw the curve, and show a few answers before and after.

python examples/demo.py [flags of relax train]
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path

from relax_core.cli.app import main

HERE = Path(__file__).parent
SHOWN = 4


def answers(directory: Path) -> None:
    """A few samples of the first and of the last step."""
    samples = [json.loads(line) for line in (directory / "samples.jsonl").read_text().splitlines()]
    for title, step in (("before", samples[0]["step"]), ("after", samples[-1]["step"])):
        print(f"\n{title} (step {step})")
        for sample in [each for each in samples if each["step"] == step][:SHOWN]:
            question = sample["id"].replace("+", " plus ")
            print(f"  {question}?  {sample['response'].strip()!r}  reward {sample['reward']:g}")


def run(*arguments: str) -> int:
    """A command of `relax` in this process; its exit code."""
    try:
        main(list(arguments))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def demo(flags: list[str]) -> int:
    """Train into a new run directory, then show what was learnt."""
    directory = Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    code = run("train", str(HERE / "demo.yaml"), "--output.dir", str(directory), *flags)
    if code == 0:
        answers(directory)
        print()
        code = run("plot", str(directory))
        print(f"run directory: {directory}")
    return code


if __name__ == "__main__":
    sys.exit(demo(sys.argv[1:]))
