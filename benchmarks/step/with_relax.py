"""The step as `relax train` takes it: python with_relax.py MODEL_DIR THREADS [entropy]."""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import task
import turns

from relax_core.binding import bind
from relax_core.orchestration.record import RunDirectory, claim
from relax_core.orchestration.run import StepReport
from relax_core.orchestration.start import start
from relax_core.runfile import read, resolve

RUN = f"""
algorithm: {{advantage_estimator: grpo, entropy_coef: %(entropy)s}}
model: {{path: .}}
data: {{path: prompts.jsonl, reward: "{task.__file__}:of_sample"}}
rollout:
  rollout_batch_size: {task.PROMPTS}
  n_samples_per_prompt: {task.SAMPLES}
  max_new_tokens: {task.NEW_TOKENS}
trainer:
  num_rollout: 10000
  lr: {task.LEARNING_RATE}
  micro_batch_size: {task.PROMPTS * task.SAMPLES}
  num_threads: %(threads)s
output: {{dir: "%(directory)s/run", samples_per_step: 0}}
"""


def main() -> None:
    directory, threads = Path(sys.argv[1]), int(sys.argv[2])
    (directory / "run.yaml").write_text(
        RUN % {"threads": threads, "directory": directory, "entropy": 1e-3 if "entropy" in sys.argv else 0}
    )
    resolved = resolve(read(directory / "run.yaml"), {})
    binding = bind(resolved.registry, resolved.choice, resolved.config.algorithm)
    requests = turns.requests()
    opened = RunDirectory.open(claim(resolved.config.output, f"run-{time.time()}"), resolved)
    with opened as place, closing(start(resolved, binding)) as job:
        place.begin(binding)
        started = time.perf_counter()

        def stepped(report: StepReport) -> None:
            nonlocal started
            spent = json.loads((place.path / "timings.jsonl").read_text().splitlines()[-1])
            turns.answer(started, generate=spent["perf/generate_seconds"], train=spent["perf/train_seconds"])
            next(requests)
            started = time.perf_counter()

        next(requests)
        started = time.perf_counter()
        job.run(place, stepped, lambda: False)


if __name__ == "__main__":
    main()
