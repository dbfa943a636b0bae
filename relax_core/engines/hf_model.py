"""Hugging Face models: loading with errors that help, and the log-probs of response tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relax_core.engines.rows import lay_out
from relax_core.engines.types import Tokens
from relax_core.errors import LoadError
from relax_core.numerics.head import evaluating, head_of, token_log_probs

PROBE_TOLERANCE = 1e-3


def without_progress_bars() -> None:
    """Loading and saving are a second's work here; the run shows its own progress."""
    from transformers.utils import logging

    logging.disable_progress_bar()


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
    model: Any, tokens: Tokens, *, temperature: float, entropy: bool, vocabulary: int | None, share: bool = True
) -> tuple[Tensor, Tensor | None]:
    """[T] log-probs of the response tokens, each seen from its own sequence alone.

    With `entropy` also the entropy [T] of the distributions. Prompt logits are never computed. With `share` responses
    to one prompt may stand in one row with it.
    """
    width = model.config.get_text_config().hidden_size if share else None
    layout = lay_out(tokens, width).to(model.device)
    hidden = model.base_model(
        input_ids=layout.ids, attention_mask=layout.mask(), position_ids=layout.positions, use_cache=False
    ).last_hidden_state
    weight, bias, transform = head_of(model)
    return token_log_probs(
        hidden[layout.rows, layout.predictors],
        weight,
        bias,
        layout.ids[layout.rows, layout.columns],
        temperature=temperature,
        entropy=entropy,
        logit_transform=transform,
        vocabulary=vocabulary,
    )


def can_share_prompts(model: Any) -> bool:
    """Whether the model gives the same log-probs when responses share their prompt, by trying it on a few tokens.

    False for an attention that does not take a mask of pairs: a sliding window, or an implementation of its own.
    """
    config = model.config.get_text_config()
    if config._attn_implementation != "sdpa" or getattr(config, "sliding_window", None) is not None:
        return False
    tokens = Tokens([[1, 2, 3, 4]] * 2, [[5, 6, 7], [8, 9]])
    with torch.no_grad(), evaluating(model):
        alone, shared = (
            response_log_probs(model, tokens, temperature=1.0, entropy=False, vocabulary=None, share=share)[0]
            for share in (False, True)
        )
    return bool((alone - shared).abs().max() < PROBE_TOLERANCE)
