"""Hugging Face models: loading with errors that help, and the log-probs of response tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relax_core.engines.rows import Layout, lay_out
from relax_core.engines.state import reason
from relax_core.engines.types import Tokens
from relax_core.errors import FOREIGN, LoadError
from relax_core.numerics.head import evaluating, head_of
from relax_core.numerics.log_probs import token_log_probs, top_log_probs

PROBE_TOLERANCE = 1e-3


def without_progress_bars() -> None:
    """Loading and saving are a second's work here; the run shows its own progress."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def load_model(path: Path, *, who: str, trust_remote_code: bool = False) -> Any:
    """A causal LM in float32 from a local directory."""
    from transformers import AutoModelForCausalLM

    return _load(AutoModelForCausalLM, path, who, dtype=torch.float32, trust_remote_code=trust_remote_code)


def load_skeleton(path: Path, *, who: str, trust_remote_code: bool = False) -> Any:
    """The causal LM of a directory without its weights: names, shapes and configurations."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    config = _load(AutoConfig, path, who, trust_remote_code=trust_remote_code)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    if (path / "generation_config.json").is_file():
        model.generation_config = _load(GenerationConfig, path, who)
    return model


def load_config(path: Path, *, who: str, trust_remote_code: bool = False) -> dict[str, Any]:
    """A model's configuration by the names that transformers has for it now, whatever the directory's age."""
    from transformers import AutoConfig

    found: dict[str, Any] = (
        _load(AutoConfig, path, who, trust_remote_code=trust_remote_code).get_text_config().to_dict()
    )
    return found


def load_critic(path: Path, *, who: str, trust_remote_code: bool = False) -> Any:
    """A model with one value a token in float32, from the directory of a critic or of a causal LM.

    The head of a new critic starts at zero, so that its first values are 0 whatever the seed.
    """
    from transformers import AutoConfig, AutoModelForTokenClassification

    config = _load(AutoConfig, path, who, num_labels=1, trust_remote_code=trust_remote_code)
    config.classifier_dropout = 0.0
    options = {"config": config, "dtype": torch.float32, "trust_remote_code": trust_remote_code}
    model, found = _load(AutoModelForTokenClassification, path, who, output_loading_info=True, **options)
    if any(name.startswith("score.") for name in found["missing_keys"]):
        torch.nn.init.zeros_(model.score.weight)
        torch.nn.init.zeros_(model.score.bias)
    return model


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
    except FOREIGN as error:
        if "trust_remote_code" in str(error):
            fix = "read its *.py files, and where you trust them write model.trust_remote_code: true"
            raise LoadError(f"'{path}' needs Python code of its own to be run", who=who, fix=fix) from None
        fix = "give a complete model directory: config, weights and tokenizer"
        raise LoadError(f"'{path}' cannot be loaded: {reason(error)}", who=who, fix=fix) from None


@dataclass(frozen=True, slots=True)
class Reading:
    """How response tokens are read: `share` lets responses to one prompt stand in one row with it."""

    temperature: float = 1.0
    vocabulary: int | None = None
    share: bool = True


def row_width(model: Any, *, share: bool) -> int | None:
    """What decides how many responses share a row; None where none may."""
    return int(model.config.get_text_config().hidden_size) if share else None


def states(model: Any, tokens: Tokens, *, share: bool) -> tuple[Tensor, Layout]:
    """[T, H] last hidden states from which each response token is predicted, each from its own sequence alone."""
    layout = lay_out(tokens, row_width(model, share=share)).to(model.device)
    hidden = model.base_model(
        input_ids=layout.ids, attention_mask=layout.mask(), position_ids=layout.positions, use_cache=False
    ).last_hidden_state
    # index_select, whose backward adds in one order: indexing adds in whatever order its threads come.
    places = layout.rows * layout.ids.shape[1] + layout.predictors
    return hidden.flatten(0, 1).index_select(0, places), layout


def response_log_probs(
    model: Any, tokens: Tokens, reading: Reading, *, entropy: bool = False, candidates: Tensor | None = None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """[T] log-probs of the response tokens; [T] entropies, if asked for; [T, K] log-probs of `candidates` [T, K], if given.

    Prompt logits are never computed.
    """
    hidden, layout = states(model, tokens, share=reading.share)
    ids = layout.responses
    if candidates is None:
        return (*token_log_probs(hidden, token_ids=ids, entropy=entropy, **_head(model, reading)), None)
    asked = torch.cat([ids[:, None], candidates], dim=1)
    log_probs, entropies = token_log_probs(hidden, token_ids=asked, entropy=entropy, **_head(model, reading))
    return log_probs[:, 0], entropies, log_probs[:, 1:]


def likeliest(model: Any, tokens: Tokens, reading: Reading, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """[T] log-probs of the response tokens; [T, count] the likeliest ids there, and their log-probs. Without a graph."""
    hidden, layout = states(model, tokens, share=reading.share)
    log_probs, _ = token_log_probs(hidden, token_ids=layout.responses, **_head(model, reading))
    return (log_probs, *top_log_probs(hidden, count=count, **_head(model, reading)))


def _head(model: Any, reading: Reading) -> dict[str, Any]:
    """What turns the model's hidden states into log-probs."""
    weight, bias, transform = head_of(model)
    return {
        "weight": weight,
        "bias": bias,
        "temperature": reading.temperature,
        "logit_transform": transform,
        "vocabulary": reading.vocabulary,
    }


def can_share_prompts(model: Any) -> bool:
    """Whether the model gives the same hidden states when responses share their prompt, by trying it on a few tokens.

    False for an attention that does not take a mask of pairs: a sliding window, or an implementation of its own.
    """
    config = model.config.get_text_config()
    if config._attn_implementation != "sdpa" or getattr(config, "sliding_window", None) is not None:
        return False
    tokens = Tokens([[1, 2, 3, 4]] * 2, [[5, 6, 7], [8, 9]])
    with torch.no_grad(), evaluating(model):
        alone, shared = (states(model, tokens, share=share)[0] for share in (False, True))
    return bool((alone - shared).abs().max() < PROBE_TOLERANCE * alone.abs().max())
