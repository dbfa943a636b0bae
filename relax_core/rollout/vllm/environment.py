"""What vLLM reads from the process while it starts, and what it leaves behind there."""

from __future__ import annotations

import logging
import os
import random
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

import numpy as np
import torch

ALWAYS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "CRITICAL",
    "PYTHONWARNINGS": "ignore",
}
ON_CPU = {
    # The first call with log-probs would compile one comparison for 19 s.
    "TORCHDYNAMO_DISABLE": "1",
    # Threads bound to cores would be the trainer's too, and the workers of two ranks would share one core.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


@contextmanager
def starting(*, separate_process: bool, device: str, threads: int | None) -> Iterator[None]:
    """Start an engine inside the block; environment, random states and `set_num_threads` are as before after it.

    On a CPU the engine replaces `torch.set_num_threads`, and preloads libraries into every later child process.
    Its processes are born with Ctrl-C blocked: the terminal sends it to them too, and it is the run's to end the step.
    """
    before, numpy_state, python_state = dict(os.environ), np.random.get_state(), random.getstate()
    set_num_threads = torch.set_num_threads
    os.environ.update(ALWAYS | (ON_CPU if device == "cpu" else {}))
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(separate_process))
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    logging.getLogger("vllm").setLevel(logging.CRITICAL)  # it has not read its own level when it first speaks
    resource_tracker.ensure_running()  # it would end the blocking when it starts
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.environ.clear()
        os.environ.update(before)
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_num_threads = set_num_threads
