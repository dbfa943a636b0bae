"""A Megatron-core model of the shape that a Hugging Face configuration describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from torch import Tensor
from torch.nn import functional

from relax_core.config import RunConfig
from relax_core.engines.megatron.layers import Norm, PackedAttention

C = TypeVar("C")


def chosen(kind: type[C], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `trainer.megatron_args` that a configuration of Megatron's has; the start-up check knows the others."""
    return {each.name: arguments[each.name] for each in fields(kind) if each.name in arguments}  # type: ignore[arg-type]


class Trunk(GPTModel):  # type: ignore[misc]
    """Gives the last hidden states instead of logits, which would be of every token of every prompt too."""

    def _postprocess(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        return hidden_states

    @property
    def head_weight(self) -> Tensor:
        """[V/TP, H] the rows of the output embedding that this rank has."""
        tied = self.share_embeddings_and_output_weights
        weight: Tensor = self.shared_embedding_or_output_weight() if tied else self.output_layer.weight
        return weight

    def whole(self, hidden: Tensor) -> Tensor:
        """[t, H] the hidden states of all of this rank's tokens, from [t or t/TP, 1, H].

        The heads give the whole gradient of them on every tensor-parallel rank, so that the backward only hands out parts.
        """
        if self.config.sequence_parallel:
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
        return hidden.squeeze(1)


def build(hf: Mapping[str, Any], run: RunConfig, dtype: torch.dtype) -> Trunk:
    """This rank's part of the model, with weights of no meaning; `hf["critic"]`: with a value instead of a vocabulary."""
    config = transformer_config(hf, run, dtype)
    rope = hf["rope_parameters"]
    model = Trunk(
        config,
        _specification(config),
        vocab_size=padded_vocabulary(hf, run.topology.tensor_model_parallel_size),
        max_sequence_length=hf["max_position_embeddings"],
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        position_embedding_type="rope",
        rotary_base=rope["rope_theta"],
        rope_scaling=rope["rope_type"] == "llama3",
        rope_scaling_factor=rope.get("factor", 1.0),
        share_embeddings_and_output_weights=hf["tie_word_embeddings"],
    )
    if model.pre_process and (padding := hf.get("pad_token_id")) is not None:
        model.embedding.word_embeddings.register_forward_hook(partial(_without_gradient, padding))
    if hf.get("critic") and model.post_process:
        model.output_layer = torch.nn.Linear(hf["hidden_size"], 1)
    return model


def _without_gradient(padding: int, embedding: Any, given: tuple[Tensor], output: Tensor) -> Tensor:
    """transformers never moves the embedding of the padding token, even where it stands in a response: nor does this."""
    is_padding = given[0] == padding
    if embedding.reduce_scatter_embeddings:
        group = parallel_state.get_tensor_model_parallel_group()
        is_padding = is_padding.transpose(0, 1).chunk(group.size())[group.rank()]
    return torch.where(is_padding[..., None], output.detach(), output)


def padded_vocabulary(hf: Mapping[str, Any], ranks: int) -> int:
    """Rows of the embeddings: as many on each rank."""
    return -(-int(hf["vocab_size"]) // ranks) * ranks


def transformer_config(hf: Mapping[str, Any], run: RunConfig, dtype: torch.dtype) -> TransformerConfig:
    """Megatron's description of the model and of how it is spread and computed."""
    cuda, topology = torch.cuda.is_available(), run.topology
    settings = {
        **_shape(hf),
        **(_experts(hf) if "num_experts_per_tok" in hf else {}),
        "tensor_model_parallel_size": topology.tensor_model_parallel_size,
        "pipeline_model_parallel_size": topology.pipeline_model_parallel_size,
        "context_parallel_size": topology.context_parallel_size,
        "sequence_parallel": topology.sequence_parallel,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        "calculate_per_token_loss": True,
        "variable_seq_lengths": True,
        "moe_token_dispatcher_type": "alltoall",
        "use_cpu_initialization": not cuda,
        **dict.fromkeys(FUSIONS, cuda and find_spec("transformer_engine") is not None),
        "persist_layer_norm": False,
        **(RECOMPUTE if run.trainer.gradient_checkpointing else {}),
    }
    return TransformerConfig(**{**settings, **chosen(TransformerConfig, run.trainer.megatron_args)})


FUSIONS = ("bias_activation_fusion", "masked_softmax_fusion", "bias_dropout_fusion", "apply_rope_fusion")
RECOMPUTE = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


def _shape(hf: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "num_layers": hf["num_hidden_layers"],
        "hidden_size": hf["hidden_size"],
        "num_attention_heads": hf["num_attention_heads"],
        "num_query_groups": hf["num_key_value_heads"],
        "kv_channels": hf["head_dim"],
        "ffn_hidden_size": hf["intermediate_size"],
        "layernorm_epsilon": hf["rms_norm_eps"],
        "qk_layernorm": hf["model_type"].startswith("qwen3"),
        "normalization": "RMSNorm",
        "gated_linear_unit": True,
        "activation_func": functional.silu,
        "add_bias_linear": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "gradient_accumulation_fusion": False,
    }


def _experts(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The router's auxiliary losses are off: the policy's loss is what the plugins give."""
    return {
        "num_moe_experts": hf.get("num_local_experts") or hf["num_experts"],
        "moe_ffn_hidden_size": hf["moe_intermediate_size"],
        "moe_router_topk": hf["num_experts_per_tok"],
        "moe_router_pre_softmax": not hf["norm_topk_prob"],
        "moe_router_load_balancing_type": "none",
        "moe_router_dtype": "fp32",
    }


def _specification(config: TransformerConfig) -> Any:
    """Transformer Engine's layers where it is installed, else Megatron-core's with what it lacks."""
    if torch.cuda.is_available() and find_spec("transformer_engine") is not None:
        return get_gpt_layer_with_transformer_engine_spec(
            num_experts=config.num_moe_experts, moe_grouped_gemm=False, qk_layernorm=config.qk_layernorm
        )
    spec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts, qk_layernorm=config.qk_layernorm, normalization="RMSNorm"
    )
    layer, attention = spec.submodules, spec.submodules.self_attention.submodules
    layer.input_layernorm = layer.pre_mlp_layernorm = Norm
    attention.core_attention = PackedAttention
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = Norm
    return TransformerBlockSubmodules(layer_specs=[spec] * get_num_layers_to_build(config), layer_norm=Norm)
