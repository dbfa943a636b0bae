"""What a causal LM does to its last hidden states: the head that `log_probs.py` computes without the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from relax_core.errors import LoadError
from relax_core.numerics.log_probs import LogitTransform, logits_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


def head_of(model: PreTrainedModel) -> tuple[Tensor, Tensor | None, LogitTransform | None]:
    """Weight [V, H], bias [V] and logit transform of a causal LM, for the last hidden states of `model.base_model`.

    The transform is what the config declares: `final_logit_softcapping` (Gemma), `logit_scale` (Cohere) or
    `logits_scaling` (Granite, a divisor). `check_head` finds what a model does beyond that.
    """
    head = model.get_output_embeddings()
    return head.weight, getattr(head, "bias", None), _declared_transform(model.config.get_text_config())


def _declared_transform(config: PreTrainedConfig) -> LogitTransform | None:
    cap: float | None = getattr(config, "final_logit_softcapping", None)
    scale: float = getattr(config, "logit_scale", 1.0) / getattr(config, "logits_scaling", 1.0)
    if cap is not None:
        return lambda logits: cap * torch.tanh(logits / cap)
    return None if scale == 1.0 else lambda logits: logits * scale


def check_head(model: PreTrainedModel) -> None:
    """Compare `head_of(model)` on the last hidden states of four tokens with the model's own logits.

    Raises LoadError when they differ by more than rounding in the model's type: log-probs would be silently wrong.
    """
    token_ids = torch.arange(4, device=model.device)[None]
    weight, bias, transform = head_of(model)
    with evaluating(model), torch.no_grad():
        expected = model(input_ids=token_ids, use_cache=False).logits
        hidden = model.base_model(input_ids=token_ids, use_cache=False).last_hidden_state
        actual = logits_of(hidden, weight, bias, transform).to(expected.dtype)
    tolerance = 4 * torch.finfo(hidden.dtype).eps * float(expected.abs().max())
    if actual.shape != expected.shape or not float((actual - expected).abs().max()) <= tolerance:
        raise LoadError(
            "its logits are not its output embedding applied to its last hidden states",
            who=type(model).__name__,
            fix="use a model that does no more to its logits than its config declares with "
            "final_logit_softcapping, logit_scale or logits_scaling",
        )


def vocabulary_limit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The number of ids that the tokenizer can decode, when the model's output embedding has more rows; else None."""
    known: int = max(tokenizer.get_vocab().values()) + 1
    return known if known < model.get_output_embeddings().weight.shape[0] else None


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode (no dropout) inside the block; afterwards each submodule is in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
