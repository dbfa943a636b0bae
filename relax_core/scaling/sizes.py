"""The sizes of a run that its estimate reads: precision, lengths, micro-batches, processes."""

from __future__ import annotations

from dataclasses import dataclass

from relax_core.numerics.sizes import responses_per_row
from relax_core.plan import trained_processes
from relax_core.rollout.vllm.arguments import DEFAULT_SEQUENCES
from relax_core.rules.megatron_args import can_shard_optimizer
from relax_core.scaling.activations import Micro
from relax_core.scaling.shape import Shape
from relax_core.topology import Topology

PROMPT_TOKENS = 512
"""Of a prompt, where `data.max_prompt_tokens` is left out."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """A run on GPUs or without: everything here follows from its configuration."""

    topology: Topology
    on_gpus: bool

    @property
    def is_megatron(self) -> bool:
        return self.topology.run.trainer.engine == "megatron"

    @property
    def prompt(self) -> int:
        """Tokens of the longest prompt."""
        return self.topology.run.data.max_prompt_tokens or PROMPT_TOKENS

    @property
    def response(self) -> int:
        """Tokens of the longest response."""
        return self.topology.run.rollout.max_new_tokens

    @property
    def longest(self) -> int:
        """Tokens of a sequence that the rollout engine has room for."""
        return self.topology.run.rollout.max_model_len or self.prompt + self.response

    @property
    def itemsize(self) -> int:
        """Bytes of a number in the trainer's products."""
        return _itemsize(self.topology.run.trainer.dtype, self.on_gpus)

    @property
    def sampled_itemsize(self) -> int:
        """Bytes of a number in the rollout engine: the embedded one's is float32, whatever the products are in."""
        rollout = self.topology.run.rollout
        return _itemsize(rollout.dtype, self.on_gpus) if rollout.engine == "vllm" else 4

    @property
    def tensor(self) -> int:
        return self.topology.run.topology.tensor_model_parallel_size if self.is_megatron else 1

    @property
    def pipeline(self) -> int:
        return self.topology.run.topology.pipeline_model_parallel_size if self.is_megatron else 1

    @property
    def context(self) -> int:
        return self.topology.run.topology.context_parallel_size if self.is_megatron else 1

    @property
    def replicas(self) -> int:
        """Ranks with the same weights and other tokens, the context-parallel ones included."""
        return trained_processes(self.topology) // (self.tensor * self.pipeline)

    @property
    def shards(self) -> int:
        """Ranks that share the optimizer's state."""
        if not self.is_megatron:
            return 1
        arguments = self.topology.run.trainer.megatron_args
        return self.replicas if arguments.get("use_distributed_optimizer", can_shard_optimizer()) else 1

    @property
    def micro_tokens(self) -> int:
        """Tokens of the largest micro-batch, prompts included."""
        trainer = self.topology.run.trainer
        one = self.prompt + self.response
        if trainer.use_dynamic_batch_size:
            return max(trainer.max_tokens_per_micro_batch, one)
        return min(trainer.micro_batch_size, self._sequences_per_rank) * one

    @property
    def micro_batches(self) -> int:
        """In an update, on each rank."""
        return max(1, -(-self._sequences_per_rank * (self.prompt + self.response) // self.micro_tokens))

    @property
    def _sequences_per_rank(self) -> int:
        return -(-self.topology.global_batch_size // (self.replicas // self.context))

    @property
    def engines(self) -> int:
        """Copies of the policy that sample."""
        run = self.topology.run
        return run.topology.resources.rollout.actors if run.topology.orchestrator == "ray" else 1

    @property
    def engine_ranks(self) -> int:
        """Processes of one of them."""
        rollout = self.topology.run.rollout
        return rollout.tensor_parallel_size if rollout.engine == "vllm" else 1

    @property
    def decoded(self) -> int:
        """Sequences that an engine may decode at once."""
        rollout, share = self.topology.run.rollout, -(-self.topology.sequences_per_rollout // self.engines)
        return min(rollout.max_batch or (DEFAULT_SEQUENCES if rollout.engine == "vllm" else share), share)

    @property
    def shares_weights(self) -> bool:
        """Whether sampling reads the very weights that are trained."""
        run = self.topology.run
        return run.rollout.engine == "hf" and not self.is_megatron and run.topology.orchestrator == "local"

    @property
    def shares_devices(self) -> bool:
        """Whether engines and trainers take turns on the same devices."""
        run = self.topology.run
        return run.topology.orchestrator == "local" or run.topology.resources.rollout.colocated

    def micro(self, shape: Shape) -> Micro:
        """The largest micro-batch on one rank; Megatron's 1F1B schedule begins one for every stage before a backward."""
        tokens, pairs = self._rows(shape)
        return Micro(
            tokens=tokens,
            responses=-(-self.micro_tokens * self.response // (self.prompt + self.response) // self.context),
            itemsize=self.itemsize,
            checkpointing=self.topology.run.trainer.gradient_checkpointing,
            keeps_float32=not self.is_megatron,
            pairs=pairs,
            tensor=self.tensor,
            pipeline=self.pipeline,
            sequence_parallel=self.is_megatron and self.topology.run.topology.sequence_parallel,
            in_flight=min(self.pipeline, self.micro_batches),
        )

    def _rows(self, shape: Shape) -> tuple[int, int]:
        """Tokens that are computed, and pairs of them in a mask: the embedded engine lets responses share their prompt."""
        sequences = max(1, self.micro_tokens // (self.prompt + self.response))
        group = min(self.topology.n_samples_per_prompt, sequences)
        in_row = 1 if self.is_megatron else responses_per_row(self.prompt, self.response, group, shape.hidden)
        if in_row == 1:
            return -(-self.micro_tokens // self.context), 0
        rows, length = -(-sequences // in_row), self.prompt + in_row * self.response
        return rows * length, rows * length * length


def _itemsize(dtype: str, on_gpus: bool) -> int:
    return 2 if dtype in ("bfloat16", "float16") or (dtype == "auto" and on_gpus) else 4
