"""The step as TRL takes it. In an environment of its own: python with_trl.py MODEL_DIR THREADS."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

import task
import torch
import turns
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Turns(TrainerCallback):
    """A step is taken when it is asked for."""

    def __init__(self) -> None:
        self.requests = turns.requests()
        self.started = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if next(self.requests, self) is self:
            control.should_training_stop = True
        self.started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        turns.answer(self.started)


def main() -> None:
    directory = Path(sys.argv[1])
    torch.set_num_threads(int(sys.argv[2]))
    rows = [json.loads(line) for line in (directory / "prompts.jsonl").read_text().splitlines()]
    settings = GRPOConfig(
        output_dir=str(directory / "trl"),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=task.PROMPTS * task.SAMPLES,
        num_generations=task.SAMPLES,
        max_completion_length=task.NEW_TOKENS,
        learning_rate=task.LEARNING_RATE,
        lr_scheduler_type="constant",
        temperature=1.0,
        beta=0.0,
        max_steps=10_000,
        seed=0,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=str(directory),
        args=settings,
        reward_funcs=lambda completions, **_: [task.reward(each) for each in completions],
        train_dataset=Dataset.from_list([{"prompt": row["prompt"]} for row in rows]),
        callbacks=[Turns()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
