# SPDX-License-Identifier: MIT

"""Writes tiny models of every family in any file format, with numpy only. The
bytes are the same on every machine.

A family is its config.json and the tensors that follow from it. A tensor
depends only on a seed and its name.
"""

import copy
import json
import os

import safetensors_io
from covering_formats import draw, rounded, widened

SMALL = {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 1,
         "intermediate_size": 50, "vocab_size": 67, "head_dim": 16}
LARGE = {"hidden_size": 80, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 72, "vocab_size": 71, "head_dim": 20}
GEMMA_NORMS = ("input_layernorm", "post_attention_layernorm",
               "pre_feedforward_layernorm", "post_feedforward_layernorm")
DENSE = ("q_proj", "v_proj", "down_proj")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
INNER = ("intermediate_size", "n_inner", "moe_intermediate_size",
         "shared_expert_intermediate_size")
YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0,
        "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 4096}


class Family:
    """A family: `config` is added to COMMON, and omitted settings are as in
    Llama."""

    COMMON = {"num_hidden_layers": 2, "max_position_embeddings": 64,
              "rope_theta": 10000.0, "hidden_act": "silu",
              "pad_token_id": None}

    def __init__(self, architecture, model_type, shape, config=(), *,
                 biases=(), head_norms=None, fused=False, experts=None,
                 mlp=("gate_proj", "up_proj", "down_proj"),
                 norms=("input_layernorm", "post_attention_layernorm"),
                 norm_mean=1.0, norm_biases=False, epsilon="rms_norm_eps",
                 tied=False, targets=DENSE, embedding="embed_tokens"):
        self.config = {
            "architectures": [architecture], "model_type": model_type,
            "tie_word_embeddings": tied, "bos_token_id": 1, "eos_token_id": 2,
            epsilon: 1e-5, **self.COMMON, **shape, **dict(config)}
        self.biases, self.head_norms, self.fused = biases, head_norms, fused
        self.experts, self.norms, self.norm_mean = experts, norms, norm_mean
        self.mlp, self.norm_biases = mlp, norm_biases
        self.tied, self.targets, self.embedding = tied, targets, embedding

    def stored_as(self, form):
        """Returns the family with an MLP width (`inner`) that the format can
        store."""
        if not form.inner:
            return self
        other = copy.copy(self)
        other.config = {key: form.inner if key in INNER else value
                        for key, value in self.config.items()}
        if self.experts:
            other.experts = {key: form.inner if key in ("inner", "shared")
                             else value for key, value in self.experts.items()}
        return other

    def sizes(self):
        c = self.config
        return [c[key] for key in ("hidden_size", "intermediate_size",
                                   "num_attention_heads",
                                   "num_key_value_heads", "head_dim")]

    def attention(self, layer):
        hidden, _, heads, groups, head = self.sizes()
        parts = {"q_proj": heads, "k_proj": groups, "v_proj": groups}
        if self.fused:
            parts = {"qkv_proj": heads + 2 * groups}
        for part, count in parts.items():
            yield f"{layer}.self_attn.{part}", (count * head, hidden)
        yield f"{layer}.self_attn.o_proj", (hidden, heads * head)

    def linears(self, layer):
        """Yields paths of linear modules, and the shapes of their weights:
        [out, in], for GPT-2 [in, out]."""
        hidden, inner = self.sizes()[:2]
        yield from self.attention(layer)
        if not self.experts:
            mlp = f"{layer}.mlp"
        elif "shared" in self.experts:
            mlp, inner = f"{layer}.mlp.shared_expert", self.experts["shared"]
            yield f"{mlp}_gate", (1, hidden)
        else:
            return
        if self.fused:
            yield f"{mlp}.gate_up_proj", (2 * inner, hidden)
        else:
            for part in self.mlp[:-1]:
                yield f"{mlp}.{part}", (inner, hidden)
        yield f"{mlp}.{self.mlp[-1]}", (hidden, inner)

    def expert_tensors(self, layer):
        hidden = self.sizes()[0]
        e = self.experts
        count, inner = e["count"], e["inner"]
        router = f"{layer}.{e['router']}"
        yield f"{router}.weight", "router", (count, hidden)
        each = f"{layer}.{e['each']}"
        if "stacked" in e:
            yield f"{router}.bias", "bias", (count,)
            yield f"{each}.gate_up_proj", "stack", (count, hidden, 2 * inner)
            yield f"{each}.gate_up_proj_bias", "bias", (count, 2 * inner)
            yield f"{each}.down_proj", "stack", (count, inner, hidden)
            yield f"{each}.down_proj_bias", "bias", (count, hidden)
            yield f"{layer}.self_attn.sinks", "sink", (self.sizes()[2],)
            return
        gate, up, down = e["names"]
        for i in range(count):
            yield f"{each}.{i}.{gate}.weight", "expert", (inner, hidden)
            yield f"{each}.{i}.{up}.weight", "expert", (inner, hidden)
            yield f"{each}.{i}.{down}.weight", "expert", (hidden, inner)

    def norm(self, path, width):
        yield f"{path}.weight", "norm", (width,)
        if self.norm_biases:
            yield f"{path}.bias", "bias", (width,)

    def tensors(self):
        """Yields (name, role, shape) of every tensor in the files."""
        hidden, _, heads, groups, head = self.sizes()
        vocabulary = self.config["vocab_size"]
        yield "model.embed_tokens.weight", "embedding", (vocabulary, hidden)
        for i in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{i}"
            for path, shape in self.linears(layer):
                yield f"{path}.weight", "linear", shape
                if path.rsplit(".", 1)[1] in self.biases:
                    yield f"{path}.bias", "bias", shape[:1]
            if self.experts:
                yield from self.expert_tensors(layer)
            for norm in self.norms:
                yield from self.norm(f"{layer}.{norm}", hidden)
            if self.head_norms:
                whole = self.head_norms == "whole"
                for part, count in (("q", heads), ("k", groups)):
                    yield (f"{layer}.self_attn.{part}_norm.weight", "norm",
                           (count * head if whole else head,))
        yield from self.norm("model.norm", hidden)
        if not self.tied:
            yield "lm_head.weight", "head", (vocabulary, hidden)


class Gpt2(Family):
    """Weights are [in, out]; norms and all linears have biases."""

    COMMON = {}

    def linears(self, layer):
        hidden, inner = self.config["n_embd"], self.config["n_inner"]
        for path, shape in (("attn.c_attn", (hidden, 3 * hidden)),
                            ("attn.c_proj", (hidden, hidden)),
                            ("mlp.c_fc", (hidden, inner)),
                            ("mlp.c_proj", (inner, hidden))):
            yield f"{layer}.{path}", shape

    def tensors(self):
        c, top = self.config, "transformer"
        yield (f"{top}.wte.weight", "embedding",
               (c["vocab_size"], c["n_embd"]))
        yield (f"{top}.wpe.weight", "embedding",
               (c["n_positions"], c["n_embd"]))
        for i in range(c["n_layer"]):
            for path, shape in self.linears(f"{top}.h.{i}"):
                yield f"{path}.weight", "linear", shape
                yield f"{path}.bias", "bias", shape[1:]
        for norm in (*(f"h.{i}.ln_{j}" for i in range(c["n_layer"])
                       for j in (1, 2)), "ln_f"):
            yield f"{top}.{norm}.weight", "norm", (c["n_embd"],)
            yield f"{top}.{norm}.bias", "bias", (c["n_embd"],)


def moe(inner, **more):
    return {"count": 4, "inner": inner, "router": "mlp.gate",
            "each": "mlp.experts", "module": "mlp.experts",
            "names": ("gate_proj", "up_proj", "down_proj"), **more}


FAMILIES = {
    "llama2": Family("LlamaForCausalLM", "llama", SMALL),
    "llama3": Family("LlamaForCausalLM", "llama", LARGE, {
        "rope_theta": 500000.0, "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 16}},
        tied=True),
    "mistral": Family("MistralForCausalLM", "mistral", LARGE,
                      {"sliding_window": 5}),
    "qwen2": Family("Qwen2ForCausalLM", "qwen2", SMALL,
                    {"sliding_window": None, "use_sliding_window": False},
                    biases=("q_proj", "k_proj", "v_proj")),
    "qwen3": Family("Qwen3ForCausalLM", "qwen3", SMALL,
                    {"head_dim": 32, "sliding_window": None,
                     "use_sliding_window": False}, head_norms="head"),
    "gemma2": Family("Gemma2ForCausalLM", "gemma2", LARGE, {
        "query_pre_attn_scalar": 24, "sliding_window": 5, "pad_token_id": 0,
        "final_logit_softcapping": 6.0, "attn_logit_softcapping": 4.0,
        "hidden_activation": "gelu_pytorch_tanh"},
        norms=GEMMA_NORMS, norm_mean=0.0, tied=True),
    "gemma3": Family("Gemma3ForCausalLM", "gemma3_text", SMALL, {
        "query_pre_attn_scalar": 24, "sliding_window": 5, "pad_token_id": 0,
        "rope_theta": 1e6, "rope_local_base_freq": 1e4,
        "layer_types": ["sliding_attention", "full_attention"],
        "hidden_activation": "gelu_pytorch_tanh"}, head_norms="head",
        norms=GEMMA_NORMS, norm_mean=0.0, tied=True),
    "phi3": Family("Phi3ForCausalLM", "phi3", LARGE | {"head_dim": 20}, {
        "partial_rotary_factor": 0.6, "original_max_position_embeddings": 8,
        "rope_scaling": {"type": "longrope",
                         "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.4],
                         "long_factor": [1.1, 1.5, 2.2, 3.3, 5.0, 7.5]},
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "pad_token_id": 5},
        fused=True, targets=("qkv_proj", "down_proj")),
    "olmo2": Family("Olmo2ForCausalLM", "olmo2", SMALL, {"pad_token_id": 1},
                    head_norms="whole", norms=("post_attention_layernorm",
                                               "post_feedforward_layernorm")),
    "granite": Family("GraniteForCausalLM", "granite", LARGE, {
        "attention_multiplier": 0.15, "embedding_multiplier": 6.0,
        "logits_scaling": 2.0, "residual_multiplier": 0.4}),
    "smollm3": Family("SmolLM3ForCausalLM", "smollm3", SMALL, {
        "no_rope_layers": [1, 0], "sliding_window": None,
        "use_sliding_window": False, "pad_token_id": 4}, tied=True),
    "gpt2": Gpt2("GPT2LMHeadModel", "gpt2", {}, {
        "n_embd": 48, "n_head": 3, "n_layer": 2, "n_inner": 76,
        "n_positions": 29, "vocab_size": 67,
        "activation_function": "gelu_new", "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        epsilon="layer_norm_epsilon", tied=True,
        targets=("c_attn", "mlp.c_proj"), embedding="wte"),
    "mixtral": Family("MixtralForCausalLM", "mixtral", SMALL, {
        "num_local_experts": 4, "num_experts_per_tok": 2,
        "intermediate_size": 40, "sliding_window": None},
        experts=moe(40, router="block_sparse_moe.gate",
                    each="block_sparse_moe.experts", names=("w1", "w3", "w2")),
        targets=ATTENTION),
    "qwen2moe": Family("Qwen2MoeForCausalLM", "qwen2_moe", SMALL, {
        "num_experts": 4, "num_experts_per_tok": 3, "norm_topk_prob": False,
        "moe_intermediate_size": 24, "shared_expert_intermediate_size": 50,
        "sliding_window": 64, "use_sliding_window": False},
        experts=moe(24, shared=50), biases=("q_proj", "k_proj", "v_proj"),
        targets=("q_proj", "v_proj", "down_proj", "shared_expert_gate")),
    "qwen3moe": Family("Qwen3MoeForCausalLM", "qwen3_moe", LARGE, {
        "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True,
        "moe_intermediate_size": 24, "sliding_window": None,
        "use_sliding_window": False},
        head_norms="head", experts=moe(24), targets=ATTENTION),
    "gptoss": Family("GptOssForCausalLM", "gpt_oss", SMALL, {
        "hidden_size": 64, "num_local_experts": 4, "num_experts_per_tok": 2,
        "intermediate_size": 32, "sliding_window": 5, "swiglu_limit": 1.5,
        "rope_scaling": YARN, "rope_theta": 150000.0, "attention_bias": True,
        "layer_types": ["sliding_attention", "full_attention"]},
        experts=moe(32, router="mlp.router", stacked=True),
        biases=ATTENTION, targets=ATTENTION),
    "starcoder2": Family("Starcoder2ForCausalLM", "starcoder2", LARGE, {
        "hidden_act": "gelu_pytorch_tanh", "sliding_window": 5},
        mlp=("c_fc", "c_proj"), norm_biases=True, epsilon="norm_epsilon",
        biases=(*ATTENTION, "c_fc", "c_proj"), tied=True,
        targets=("q_proj", "v_proj", "c_proj")),
    "stablelm": Family("StableLmForCausalLM", "stablelm", SMALL, {
        "use_qkv_bias": True, "partial_rotary_factor": 0.25},
        norm_biases=True, epsilon="layer_norm_eps",
        biases=("q_proj", "k_proj", "v_proj")),
}


def drawn(family, seed, name, role, shape):
    """Draws values larger than a new model's, so that every path matters."""
    if role == "norm":
        return draw(seed, name, shape, 0.1, family.norm_mean)
    if role in ("bias", "sink"):
        return draw(seed, name, shape, 1.0 if role == "sink" else 0.1)
    is_turned = role == "stack" or (role == "linear"
                                    and isinstance(family, Gpt2))
    fan_in = shape[-2] if is_turned else shape[-1]
    return draw(seed, name, shape,
                (2.0 if role == "router" else 1.0) / fan_in ** 0.5)


def write_model(folder, family, form, seed, decoded=False):
    """Writes config.json and model.safetensors. If `decoded`, all tensors are
    float32 and have the names of the unquantized model."""
    tensors = {}
    for name, role, shape in family.tensors():
        if form.stores(name, role):
            if isinstance(family, Gpt2):  # bitsandbytes transposes GPT-2
                parts, values = form.store(seed, name, shape[::-1])
                values = values.T
            else:
                parts, values = form.store(seed, name, shape)
            tensors |= {name: values} if decoded else parts
            continue
        values = rounded(drawn(family, seed, name, role, shape), form.dtype)
        tensors[name] = widened(values) if decoded else values
    os.makedirs(folder, exist_ok=True)
    safetensors_io.save(os.path.join(folder, "model.safetensors"), tensors,
                        {"format": "pt"})  # transformers 4 needs it
    config = {**family.config,
              "torch_dtype": "float32" if decoded else form.dtype}
    if form.method and not decoded:
        config["quantization_config"] = form.method
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file, indent=1)
