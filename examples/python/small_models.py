"""Small models with random weights out of published config.json files: the same classes, layer pattern, grouping of heads and
kinds of gates, with sizes that a test runs in a second. Nothing is downloaded.

    small = shrink(json.load(open("configs/qwen3-next-80b-a3b.json")))   # still a config.json, for transformers and the plugin
    model = build(small, seed=1)
"""

from __future__ import annotations

import copy
import json
import pathlib
import tempfile
from typing import Any, Dict

import torch
import transformers

VOCABULARY, EXPERTS = 1000, 8

# What the recurrence does not see. Set where the model's config class has the key.
REST = {
    "vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 4096,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "moe_shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 64, "num_experts": EXPERTS, "num_local_experts": EXPERTS, "n_routed_experts": EXPERTS,
    "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "initializer_range": 0.1,
    "chunk_size": 16, "mamba_chunk_size": 16,
}
# The recurrent layers: dims by `divisor`, groups a quarter, heads so that heads x dim stays about the published multiple of
# hidden_size.
DIMS = ("linear_key_head_dim", "linear_value_head_dim", "state_size", "ssm_state_size", "mamba_d_state", "mamba_head_dim",
        "mamba_d_head")
GROUPS = ("n_groups", "mamba_n_groups")
HEADS = {"num_heads": "head_dim", "mamba_num_heads": "mamba_head_dim", "mamba_n_heads": "mamba_d_head",
         "linear_num_value_heads": "linear_value_head_dim"}
PER_LAYER = ("layer_types", "layers_block_type", "hybrid_override_pattern", "mlp_layer_types")
LAYER_LISTS = ("attn_layer_indices", "kda_layers", "full_attn_layers")  # numbers of layers, from 0 or from 1


def shrink(published: Dict[str, Any], layers: int = 8, hidden: int = 64, divisor: int = 8, chosen: int = 2) -> Dict[str, Any]:
    """The config of a small model of its first layers, with the first attention among them; keys that the published file
    lacks and the class has are added. divisor: of the recurrent layers' head dims; chosen: experts per token."""
    config = copy.deepcopy(published)
    decoder = config.get("text_config", config)
    layers = max(layers, 1 + first_attention(decoder))
    shrink_rest(decoder, chosen)
    for place in (decoder, decoder.get("linear_attn_config", {})):
        shrink_recurrent(place, hidden / decoder["hidden_size"], divisor)
        shrink_layers(place, layers)
    decoder["hidden_size"] = hidden
    decoder["num_hidden_layers"] = layers
    return config


def first_attention(decoder: Dict[str, Any]) -> int:
    """Its layer, where the config says so and has one: caches of transformers want one in most of these models."""
    if "attn_layer_indices" in decoder:
        return min(decoder["attn_layer_indices"], default=0)
    pattern = decoder.get("hybrid_override_pattern", "")
    words = list(pattern) or decoder.get("layers_block_type") or decoder.get("layer_types") or []
    return next((i for i, word in enumerate(words) if word == "*" or "attention" in word and "linear" not in word), 0)


def shrink_rest(decoder: Dict[str, Any], chosen: int) -> None:
    defaults = transformers.AutoConfig.for_model(decoder["model_type"])
    for key, value in {**REST, "num_experts_per_tok": chosen}.items():
        if hasattr(defaults, key) and not (key == "head_dim" and "num_heads" in decoder):
            decoder[key] = value
    if getattr(defaults, "num_key_value_heads", 0) == getattr(defaults, "num_attention_heads", 0) != 0:
        decoder["num_key_value_heads"] = decoder["num_attention_heads"]


def shrink_recurrent(place: Dict[str, Any], factor: float, divisor: int) -> None:
    """factor: of the hidden size."""
    published = dict(place)
    for key in GROUPS:
        if key in place:
            place[key] = max(1, published[key] // 4)
    groups = next((place[key] for key in GROUPS if key in place), 1)
    for key in DIMS:
        if key in place:
            place[key] = published[key] // divisor
    for heads, dim in HEADS.items():
        if heads in place:
            place[dim] = published[dim] // divisor
            place[heads] = groups * max(1, round(published[heads] * published[dim] * factor / place[dim] / groups))
    if "linear_num_key_heads" in place:
        place["linear_num_key_heads"] = (place["linear_num_value_heads"] * published["linear_num_key_heads"]
                                         // published["linear_num_value_heads"])
    if "mamba_d_ssm" in place:
        place["mamba_d_ssm"] = place["mamba_n_heads"] * place["mamba_d_head"]


def shrink_layers(place: Dict[str, Any], layers: int) -> None:
    for key in PER_LAYER:
        if key in place:
            place[key] = place[key][:layers]
    first = min(place.get("kda_layers", [0]))  # Kimi counts from 1
    for key in LAYER_LISTS:
        if key in place:
            place[key] = [number for number in place[key] if number < layers + first]


def build(config: Dict[str, Any], seed: int = 0, dtype: Any = torch.float32, device: Any = "cpu") -> Any:
    """transformers' model of that config.json, with random weights."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        read = transformers.AutoConfig.from_pretrained(folder)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(read.get_text_config(), dtype=torch.float32).eval()
    spread_decays(model)
    model.generation_config.eos_token_id = None  # every run has all its tokens
    return model.to(dtype=dtype, device=device)


def spread_decays(model: Any) -> None:
    """Heads that remember for a token to 500, as trained ones do (some classes start with heads that forget at once), and that
    are heard beside Mamba-2's skip D."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("A_log"):
                parameter.uniform_(0, 2)
            elif name.endswith(".D"):
                parameter.uniform_(0, 0.2)
            elif name.endswith("dt_bias"):  # softplus(dt_bias) in 0.002 .. 0.2
                step = torch.exp(torch.empty_like(parameter).uniform_(-6.2, -1.6))
                parameter.copy_(torch.log(torch.expm1(step)))


def prompts(batch: int, length: int, seed: int = 0, vocabulary: int = VOCABULARY) -> torch.Tensor:
    """Random tokens [batch, length] without the special ones."""
    return torch.randint(3, vocabulary, (batch, length), generator=torch.Generator().manual_seed(seed))
