"""Hugging Face models: loading with errors that help, and the log-probs of response tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relax_core.engines.types import Tokens
from relax_core.errors import LoadError
from relax_core.numerics.head import head_of, token_log_probs


def without_progress_bars() -> None:
    """Loading and saving are a second's work here; the run shows its own progress."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def load_model(path: Path, *, who: str, trust_remote_code: bool = False) -> Any:
    """A causal LM in float32 from a local directory."""
    from transformers import AutoModelForCausalLM

    return _load(AutoModelForCausalLM, path, who, dtype=torch.float32, trust_remote_code=trust_remote_code)


def load_tokenizer(path: Path, *, who: str, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a model directory."""
    from transformers import AutoTokenizer

    return _load(AutoTokenizer, path, who, trust_remote_code=trust_remote_code)


def check_directory(path: Path, *, who: str) -> None:
    """Refuse what cannot be a model directory, before anything heavy is imported."""
    if not path.is_dir():
        fix = "give a Hugging Face model directory, or a builder 'file.py:function'"
        raise LoadError(f"no model directory '{path}'", who=who, fix=fix)
    if not (path / "config.json").is_file():
        raise LoadError(f"'{path}' has no config.json", who=who, fix="give a directory that save_pretrained wrote")


def _load(kind: Any, path: Path, who: str, **options: Any) -> Any:
    check_directory(path, who=who)
    try:
        return kind.from_pretrained(str(path), local_files_only=True, **options)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        reason = " ".join(str(error).split())[:300]
        fix = "give a complete model directory: config, weights and tokenizer"
        raise LoadError(f"'{path}' cannot be loaded: {reason}", who=who, fix=fix) from None


def response_log_probs(
    model: Any, tokens: Tokens, *, temperature: float, entropy: bool, vocabulary: int | None
) -> tuple[Tensor, Tensor | None]:
    """[T] log-probs of the response tokens of right-padded sequences, each seen from its own sequence alone.

    With `entropy` also the entropy [T] of the distributions. Prompt logits are never computed.
    """
    ids, mask = _pad(tokens, model.device)
    hidden = model.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    rows, columns = _positions(tokens, model.device)
    weight, bias, transform = head_of(model)
    return token_log_probs(
        hidden[rows, columns - 1],
        weight,
        bias,
        ids[rows, columns],
        temperature=temperature,
        entropy=entropy,
        logit_transform=transform,
        vocabulary=vocabulary,
    )


def _pad(tokens: Tokens, device: torch.device) -> tuple[Tensor, Tensor]:
    rows = [torch.tensor(p + r) for p, r in zip(tokens.prompts, tokens.responses, strict=True)]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0)
    lengths = torch.tensor([len(row) for row in rows])
    return ids.to(device), (torch.arange(ids.shape[1]) < lengths[:, None]).long().to(device)


def _positions(tokens: Tokens, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row and column of every response token in the padded batch."""
    lengths = torch.tensor([len(response) for response in tokens.responses])
    starts = torch.tensor([len(prompt) for prompt in tokens.prompts])
    rows = torch.arange(len(lengths)).repeat_interleave(lengths)
    within = torch.arange(int(lengths.sum())) - (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
    return rows.to(device), (starts[rows] + within).to(device)
