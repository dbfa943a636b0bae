"""What a rank does: its part of every pass, update and checkpoint. How ranks are started and asked is not known here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

if not torch.cuda.is_available():
    from relax_core.engines.megatron.cpu import install

    install()

from megatron.core import parallel_state
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

from relax_core.batch import Rollout
from relax_core.engines.job import Origin, bound, origins
from relax_core.engines.megatron import checkpoint, convert
from relax_core.engines.megatron.models import Models, Readable
from relax_core.engines.megatron.sequence import Packed
from relax_core.engines.megatron.share import Share
from relax_core.engines.megatron.training import Found, run
from relax_core.engines.types import Tokens
from relax_core.faults import NotFinite
from relax_core.groups import DistributedGroup
from relax_core.packing import critic_batch, loss_batch, rollout_of
from relax_core.reductions import Metrics
from relax_core.runtime import LossOutput, Runtime
from relax_core.states import plain_states, put_states

STATE = "dist_ckpt"
REFERENCE = "reference_dist_ckpt"
BUCKET = 2**28
"""Bytes of weights that are gathered and sent at once."""
WAIT = timedelta(minutes=60)

Read = Callable[[Readable, Tensor, Packed], Sequence[Tensor]]


class Worker:
    """A rank of `world` in a layout of these `sizes`; `meeting` is the address at which the ranks find each other."""

    def __init__(self, rank: int, world: int, meeting: str, sizes: Mapping[str, int]) -> None:
        self.rank = rank
        self.device = _join(rank, world, meeting, sizes)
        self.context = DistributedGroup(parallel_state.get_context_parallel_group())
        self.replicas = DistributedGroup(parallel_state.get_data_parallel_group(with_context_parallel=True))
        self.first_of_tensor = parallel_state.get_tensor_model_parallel_rank() == 0
        self.last_stage = parallel_state.is_pipeline_last_stage()

    def open(self, job: Mapping[str, Any]) -> dict[str, Origin]:
        """Take up a run: its plugins and its models, instead of those of an earlier one; says where the plugins are from."""
        self.config, self.binding = bound(job["run"])
        torch.set_num_threads(self.config.trainer.num_threads or int(os.environ["OMP_NUM_THREADS"]))
        model_parallel_cuda_manual_seed(self.config.trainer.seed)
        self.runtime = Runtime.of(self.config, self.binding)
        self.models = Models(self.config, job["models"], job["vocabulary"], job["updates"], self.device)
        return origins(self.binding)

    # -- passes without a graph: this rank's values and their places in the batch --------------------------------------

    def score(self, tokens: list[Any], policy: str) -> dict[str, Any] | None:
        """Log-probs of response tokens."""
        return self._pass(policy, tokens, lambda model, states, packed: (self._log_probs(model, states, packed),))

    def candidates(self, tokens: list[Any], count: int) -> dict[str, Any] | None:
        """The teacher's log-probs of response tokens, the ids that it finds likeliest there, and theirs."""

        def read(model: Readable, states: Tensor, packed: Packed) -> Sequence[Tensor]:
            return self._log_probs(model, states, packed), *self.models.head(model.trunk).likeliest(states, count)

        return self._pass("teacher", tokens, read)

    def values(self, tokens: list[Any]) -> dict[str, Any] | None:
        """The critic's values."""
        return self._pass("critic", tokens, lambda model, states, _: (_values(model, states),))

    def _pass(self, role: str, tokens: list[Any], read: Read) -> dict[str, Any] | None:
        share = self._share(tokens)
        with self.models.reading(role) as model:

            def loss(hidden: Tensor, number: int) -> tuple[Tensor, Tensor, Found]:
                packed = share.packed[number]
                values = read(model, _states(model, hidden, packed), packed)
                nothing = hidden.new_zeros(())
                return nothing, nothing.int(), {"values": values, "places": share.places(number)}

            found = run(model.module, share.packed, loss, forward_only=True)
        if not (self.last_stage and self.first_of_tensor):
            return None
        values = [torch.cat(each).cpu() for each in zip(*(one["values"] for one in found), strict=True)]
        return {"values": values, "places": torch.cat([one["places"] for one in found]).cpu()}

    # -- updates -----------------------------------------------------------------------------------------------------

    def update(
        self, tokens: list[Any], rollout: dict[str, Any], step: int, states: dict[str, Any], role: str
    ) -> dict[str, Any] | None:
        """One optimizer update on this rank's share of a mini-batch; `states` are the plugins' own.

        Where something is not finite, `nonfinite` says what this rank knows of it.
        """
        put_states(self.binding.active, states)
        trained, share = self.models.trained[role], self._share(tokens)
        whole = rollout_of(rollout, self.device)
        model = Readable(trained.model, trained.module)
        give = self._policy if role == "actor" else self._critic
        seen: list[dict[str, Tensor]] = []

        def loss(hidden: Tensor, number: int) -> tuple[Tensor, Tensor, Found]:
            packed = share.packed[number]
            output, values = give(model, _states(model, hidden, packed), packed, share.of(whole, number), step)
            seen.append({name: each.detach() for name, each in values.items()} | {"places": share.places(number)})
            return output.sum, output.count.int(), {"metrics": output.metrics, "sum": output.sum.detach()}

        lr = trained.lr
        try:
            found, norm, applied = trained.update(share.packed, loss, step)
        except NotFinite as error:
            error.parameters = list(convert.nonfinite(trained.model, self.models.wanted[role]["hf"]))
            return {"nonfinite": error.plain(), **self._whole(seen)}
        metrics = Metrics()
        for each in found:
            metrics.update(each["metrics"].partials.items())
        if self.last_stage:
            metrics = metrics.over(self.replicas)
        if not (self.last_stage and self.first_of_tensor and self.replicas.rank == 0):
            return None
        result = {"metrics": metrics.plain(), "grad_norm": norm, "lr": lr, "applied": applied}
        return {**result, "states": plain_states(self.binding.active)}

    def _whole(self, seen: list[dict[str, Tensor]]) -> dict[str, Any]:
        """What a forward pass gave on this rank, by name, and the places in the batch; nothing where another speaks for it."""
        if not (self.last_stage and self.first_of_tensor):
            return {}
        whole = {name: torch.cat([each[name] for each in seen]).cpu() for name in seen[0]}
        return {"places": whole.pop("places"), "names": list(whole), "values": list(whole.values())}

    def _policy(
        self, model: Readable, states: Tensor, packed: Packed, part: Rollout, step: int
    ) -> tuple[LossOutput, dict[str, Tensor]]:
        """The loss, and the values that it was made of."""
        head, entropy = self.models.head(model.trunk), self.binding.needs("requires_entropy")
        if not part.has("candidate_ids"):
            log_probs, entropies = head.log_probs(states, packed.labels, entropy=entropy)
            found = {"log_probs": log_probs}
        else:
            asked = torch.cat([packed.labels[:, None], part.candidate_ids], dim=1)
            both, entropies = head.log_probs(states, asked, entropy=entropy)
            found = {"log_probs": both[:, 0], "candidate_log_probs": both[:, 1:]}
        if entropies is not None:
            found["entropy"] = entropies
        return self.runtime.loss(loss_batch(part, self.context, **found), step), found

    def _critic(
        self, model: Readable, states: Tensor, packed: Packed, part: Rollout, step: int
    ) -> tuple[LossOutput, dict[str, Tensor]]:
        """As `_policy`."""
        found = {"values": _values(model, states)}
        return self.runtime.value_loss(critic_batch(part, found["values"], self.context), step), found

    # -- weights -----------------------------------------------------------------------------------------------------

    def weights(self, role: str) -> Iterator[dict[str, Tensor]]:
        """A pipeline stage's weights in Hugging Face form, from one of its ranks, bucket by bucket."""
        bucket: dict[str, Tensor] = {}
        for name, tensor in convert.export(self.models.trained[role].model, self.models.wanted[role]["hf"]):
            if self.first_of_tensor and self.replicas.rank == 0:
                bucket[name] = tensor.cpu().clone()
            if sum(each.nbytes for each in bucket.values()) >= BUCKET:
                yield bucket
                bucket = {}
        if bucket:
            yield bucket

    def refresh_reference(self) -> None:
        """Copy the actor into the reference."""
        self.models.refresh_reference()

    def save(self, directory: str, role: str, reference: bool = False) -> None:
        """What training goes on from, and a reference that has moved."""
        checkpoint.save(self.models.trained[role], Path(directory) / STATE)
        if reference:
            with self.models.reading("reference") as model:
                checkpoint.write({"model": model.trunk.sharded_state_dict()}, Path(directory) / REFERENCE)

    def load(self, directory: str, role: str, reference: bool = False) -> None:
        """Go on from what `save` wrote, in this or another layout."""
        checkpoint.load(self.models.trained[role], Path(directory) / STATE)
        if reference:
            with self.models.reading("reference") as model:
                checkpoint.load_weights(model.trunk, Path(directory) / REFERENCE, "--resume")

    def leave(self) -> None:
        """Meet the others a last time: a rank that ends early takes gloo's connections down under them."""
        dist.barrier()

    def _share(self, tokens: list[Any]) -> Share:
        return Share(Tokens(tokens[0], tokens[1], resets=tokens[2]), self.config, self.device)

    def _log_probs(self, model: Readable, states: Tensor, packed: Packed) -> Tensor:
        return self.models.head(model.trunk).log_probs(states, packed.labels)[0]


def _join(rank: int, world: int, meeting: str, sizes: Mapping[str, int]) -> torch.device:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    backend = "nccl" if cuda else "gloo"
    dist.init_process_group(backend, meeting, rank=rank, world_size=world, timeout=WAIT)
    parallel_state.initialize_model_parallel(**sizes)
    return device


def _states(model: Readable, hidden: Tensor, packed: Packed) -> Tensor:
    """[n, H] the hidden states from which the response tokens are predicted."""
    return model.trunk.whole(hidden).index_select(0, packed.predictors)


def _values(model: Readable, states: Tensor) -> Tensor:
    weight = model.trunk.output_layer.weight
    values: Tensor = model.trunk.output_layer(states.to(weight.dtype))
    return values.squeeze(-1).float()
