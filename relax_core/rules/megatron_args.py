"""`trainer.megatron_args`: the names that Megatron-core has, and those that the rest of a run decides."""

from __future__ import annotations

from importlib.util import find_spec

from relax_core.rules.declared import declared_fields

_TRAINER = ("lr", "weight_decay", "adam_beta1", "adam_beta2", "adam_eps", "clip_grad")
_TOPOLOGY = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "sequence_parallel",
)
_SHAPE = (
    "num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "kv_channels", "ffn_hidden_size",
    "layernorm_epsilon", "qk_layernorm", "normalization", "gated_linear_unit", "activation_func", "add_bias_linear",
    "add_qkv_bias", "num_moe_experts", "moe_ffn_hidden_size", "moe_router_topk", "moe_router_pre_softmax",
)  # fmt: skip
_FIXED = (
    "calculate_per_token_loss", "variable_seq_lengths", "moe_router_load_balancing_type", "moe_token_dispatcher_type",
    "hidden_dropout", "attention_dropout", "finalize_model_grads_func", "no_sync_func", "grad_scale_func",
)  # fmt: skip
_ABSENT = (
    "expert_model_parallel_size", "virtual_pipeline_model_parallel_size", "use_megatron_fsdp", "fp16", "mtp_num_layers",
    "optimizer", "moe_grouped_gemm", "hierarchical_context_parallel_sizes", "hybrid_context_parallel", "fp8", "fp4",
)  # fmt: skip

OWNED = {
    **{name: f"write trainer.{name}" for name in _TRAINER},
    **{name: f"write topology.{name}" for name in _TOPOLOGY},
    **dict.fromkeys(_SHAPE, "leave it out: the model's own configuration says it"),
    **dict.fromkeys(_FIXED, "leave it out: the losses of this run are exact only as it is"),
    **dict.fromkeys(_ABSENT, "leave it out: this engine does not support it"),
    **dict.fromkeys(("bf16", "params_dtype", "pipeline_dtype"), "write trainer.dtype"),
}
"""Arguments that a run decides, and what to write instead."""


_DECLARED = (
    ("model_parallel_config.py", "ModelParallelConfig"),
    ("transformer/transformer_config.py", "TransformerConfig"),
    ("optimizer/optimizer_config.py", "OptimizerConfig"),
    ("distributed/distributed_data_parallel_config.py", "DistributedDataParallelConfig"),
)


def can_shard_optimizer() -> bool:
    """Whether the distributed optimizer can go on from a checkpoint: with PyTorch's own AdamW inside, it cannot."""
    return find_spec("transformer_engine") is not None or find_spec("apex") is not None


def known_arguments() -> list[str]:
    """The fields of Megatron-core's configurations of transformer, optimizer and distributed data parallel."""
    return sorted(frozenset().union(*(declared_fields("megatron.core", *place) for place in _DECLARED)))
