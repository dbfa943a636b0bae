"""A logits processor: ids that the tokenizer does not know are never sampled, and have no part in the log-probs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor

from relax_core.rollout.vllm.arguments import VOCABULARY

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class KnownTokens(LogitsProcessor):  # type: ignore[misc]
    """Leaves the first `additional_config["relax_vocabulary"]` ids, in every request alike."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self._known = vllm_config.additional_config[VOCABULARY]

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """-inf, in place, for every id of [R, V] past the known ones."""
        logits[:, self._known :] = -torch.inf
        return logits

    def is_argmax_invariant(self) -> bool:
        """No: the likeliest id may be one of them."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """There is none: requests do not differ."""
