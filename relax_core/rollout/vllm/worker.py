"""What is mixed into vLLM's worker class, in whichever process that is: the receiving end of a weight update.

vLLM imports this module in each worker before it makes a weight-transfer engine, so the one over gloo is known there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from relax_core.rollout.vllm import gloo  # noqa: F401
from relax_core.rollout.vllm.manifest import Manifest


class WeightReceiver:
    """`begin_update`, any number of `receive…`, `finish_update`; the layers take a chunk each as they are complete."""

    model_runner: Any
    vllm_config: Any

    def begin_update(self, check_values: bool) -> None:
        """Make the model ready to be loaded again; until `finish_update` it must not generate."""
        from vllm.model_executor.model_loader.reload.layerwise import initialize_layerwise_reload

        self.begin_counting(check_values)
        with self._current():
            initialize_layerwise_reload(self.model_runner.model)

    def begin_counting(self, check_values: bool) -> None:
        """Count whatever is loaded until `end_counting`, through whichever way it comes."""
        model = self.model_runner.model
        # Named now: while a model is loaded again, tied weights are two.
        self._left = {name for name, _ in model.named_parameters()}
        self._manifest, load = Manifest(check_values), model.load_weights

        def counting(weights: Iterable[tuple[str, Tensor]]) -> set[str]:
            loaded: set[str] = load(map(self._manifest.add, weights))
            self._left -= loaded
            return loaded

        model.load_weights = counting

    def receive(self, items: list[tuple[str, Tensor]]) -> None:
        """Load a chunk that is in this process already."""
        self._load(items)

    def receive_bytes(self, blob: bytes) -> None:
        """Load a chunk in safetensors form."""
        from safetensors.torch import load

        self._load(load(blob).items())

    def finish_update(self) -> tuple[int, str, list[str]]:
        """How many tensors came, the digest of them, and the engine's parameters that are not wholly new."""
        from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload

        self._left |= set(self._waiting())
        with self._current():
            finalize_layerwise_reload(self.model_runner.model, self.model_runner.model_config)
        return self.end_counting()

    def end_counting(self) -> tuple[int, str, list[str]]:
        """The same of an update that vLLM itself has finished."""
        del self.model_runner.model.load_weights
        with self._current():
            _renew_tied(self.model_runner.model)
        return self._manifest.count, self._manifest.digest, sorted(self._left)

    def _load(self, items: Iterable[tuple[str, Tensor]]) -> None:
        with self._current(), torch.no_grad():
            self.model_runner.model.load_weights(items)

    def _waiting(self) -> Iterator[str]:
        """Layers that wait for a part of their weights."""
        from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
        from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

        for name, layer in self.model_runner.model.named_modules():
            info = get_layerwise_info(layer)
            # An embedding is padded to a multiple of 64 rows and so never complete; it comes as one tensor.
            waits = info.can_load() and 0 < info.load_numel < (info.load_numel_total or 0)
            if waits and not isinstance(layer, VocabParallelEmbedding):
                yield name

    @contextmanager
    def _current(self) -> Iterator[None]:
        from vllm.config import set_current_vllm_config

        with set_current_vllm_config(self.vllm_config):
            yield


def _renew_tied(model: Any) -> None:
    """Layers that share another's weight got none of their own: what their kernels keep packed of it is made anew."""
    seen = set[int]()
    for layer in model.modules():
        weight = getattr(layer, "weight", None)
        if id(weight) in seen and hasattr(layer, "quant_method"):
            layer.quant_method.process_weights_after_loading(layer)
        seen |= {id(weight)} if weight is not None else set()
