"""Every benchmark with a target, as a table: python benchmarks/bench.py --trl PYTHON [--only NAME …] [--rounds N].

`--trl` is the Python of an environment that has TRL (`make bench` makes one). Results go to benchmarks/results.json, and from
there into the README (`make docs`); with `--only` the other rows stay as they are. What is
met and what is not changes nothing of the exit code.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import batching
import end_to_end
import head
import plugin_path
import report
import start
from report import Row

NAMES = ("step", "head", "plugins", "batching", "start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    given = parser.parse_args()
    if not given.trl.is_file():
        parser.error(f"--trl: there is no file {given.trl}; `make bench` makes an environment that has TRL")
    items: dict[str, Callable[[int, int], Iterator[Row]]] = {
        "step": partial(end_to_end.measure, given.trl),
        "head": lambda threads, rounds: head.measure(threads, max(2, rounds // 3)),
        "plugins": lambda threads, rounds: plugin_path.measure(threads, 5 * rounds),
        "batching": batching.measure,
        "start": start.measure,
    }
    rows = []
    for name, measure in items.items():
        if name in given.only:
            for row in measure(given.threads, given.rounds):
                report.show([row])
                rows.append(row)
    report.show(rows)
    report.write(rows, report.machine(given.threads))


if __name__ == "__main__":
    main()
