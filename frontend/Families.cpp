// SPDX-License-Identifier: MIT

// The table of model families. The defaults of omitted fields are in
// Families.h. They fit Llama or turn a property off.

#include "frontend/Families.h"

#include <algorithm>

namespace qlora {

using enum BiasRule;

static constexpr Family kFamilies[] = {
    {
        .architecture = "LlamaForCausalLM",
        .modelType = "llama",
        .mixer = {.inputBias = kByKey, .outputBias = kByKey},
        .mlp = {.bias = kByKey},
    },
    {
        .architecture = "MistralForCausalLM",
        .modelType = "mistral",
        .mixer = {.window = WindowRule::kAllLayers},
        .defaults = {.kvHeads = 8, .window = 4096},
    },
    {
        .architecture = "Qwen2ForCausalLM",
        .modelType = "qwen2",
        .mixer = {.inputBias = kAlways, .window = WindowRule::kByLayers},
        .defaults = {.kvHeads = 32, .window = 4096},
    },
    {
        .architecture = "Qwen3ForCausalLM",
        .modelType = "qwen3",
        .mixer = {.inputBias = kByKey, .outputBias = kByKey,
                  .headNorms = HeadNorms::kByHead,
                  .window = WindowRule::kByLayers},
        .defaults = {.kvHeads = 32, .headDim = 128, .window = 4096},
    },
    {
        .architecture = "Gemma2ForCausalLM",
        .modelType = "gemma2",
        .norm = NormKind::kRmsAboveOne,
        .scalesEmbedding = true,
        .mixer = {.inputBias = kByKey, .outputBias = kByKey,
                  .window = WindowRule::kPeriodic},
        .keys = {.activation = "hidden_activation",
                 .queryWidth = "query_pre_attn_scalar",
                 .attentionCap = "attn_logit_softcapping",
                 .logitCap = "final_logit_softcapping",
                 .unread = {"hidden_act", "sliding_window_size"}},
        .modules = {.attentionNorm = "post_attention_layernorm",
                    .mlpNorm = "pre_feedforward_layernorm",
                    .mlpOutputNorm = "post_feedforward_layernorm"},
        .defaults = {.kvHeads = 4,
                     .headDim = 256,
                     .window = 4096,
                     .windowPeriod = 2,
                     .queryWidth = 256,
                     .attentionCap = 50,
                     .logitCap = 30,
                     .paddingToken = 0,
                     .activation = "gelu_pytorch_tanh",
                     .tied = true},
    },
    {
        .architecture = "MixtralForCausalLM",
        .modelType = "mixtral",
        .mixer = {.window = WindowRule::kAllLayers},
        .experts = {.router = "block_sparse_moe.gate",
                    .each = "block_sparse_moe.experts",
                    .projections = {"w1", "w3", "w2"},
                    .innerKey = "intermediate_size",
                    .alwaysNormalized = true},
        .defaults = {.kvHeads = 8, .ropeTheta = 1000000, .normEpsilon = 1e-5},
    },
    {
        .architecture = "Qwen2MoeForCausalLM",
        .modelType = "qwen2_moe",
        .mixer = {.inputBias = kUnlessFalse},
        .experts = {.router = "mlp.gate",
                    .each = "mlp.experts",
                    .shared = "mlp.shared_expert",
                    .sharedGate = "mlp.shared_expert_gate",
                    .hasDenseLayers = true},
        .keys = {.inputBias = "qkv_bias"},
        .defaults = {.kvHeads = 16},
    },
    {
        .architecture = "Qwen3MoeForCausalLM",
        .modelType = "qwen3_moe",
        .mixer = {.inputBias = kByKey, .outputBias = kByKey,
                  .headNorms = HeadNorms::kByHead},
        .experts = {.router = "mlp.gate",
                    .each = "mlp.experts",
                    .hasDenseLayers = true},
        .defaults = {.kvHeads = 4},
    },
    {
        .architecture = "GptOssForCausalLM",
        .modelType = "gpt_oss",
        .mixer = {.inputBias = kUnlessFalse, .outputBias = kUnlessFalse,
                  .window = WindowRule::kPeriodic},
        .experts = {.router = "mlp.router",
                    .routerModule = "mlp.router",
                    .innerKey = "intermediate_size",
                    .alwaysNormalized = true,
                    .areStacked = true,
                    .haveBiases = true,
                    .glu = {.limit = 7,
                            .slope = 1.702,
                            .offset = 1,
                            .limitKey = "swiglu_limit",
                            .slopeKey = "swiglu_alpha"}},
        .keys = {.unread = {"experts_per_token", "initial_context_length"}},
        .modules = {.sinks = "self_attn.sinks"},
        .defaults = {.kvHeads = 8,
                     .headDim = 64,
                     .window = 128,
                     .windowPeriod = 2,
                     .ropeTheta = 150000,
                     .rope = R"({"rope_type": "yarn", "factor": 32,
                                 "beta_fast": 32, "beta_slow": 1,
                                 "truncate": false,
                                 "original_max_position_embeddings": 4096})",
                     .paddingToken = 199999,
                     .normEpsilon = 1e-5},
        .vllm = {.stackedExperts = true},
    },
    {
        .architecture = "Gemma3ForCausalLM",
        .modelType = "gemma3_text",
        .norm = NormKind::kRmsAboveOne,
        .scalesEmbedding = true,
        .mixer = {.inputBias = kByKey, .outputBias = kByKey,
                  .headNorms = HeadNorms::kByHead,
                  .window = WindowRule::kPeriodic,
                  .rotary = RotaryRule::kByLayerType},
        .keys = {.activation = "hidden_activation",
                 .queryWidth = "query_pre_attn_scalar",
                 .attentionCap = "attn_logit_softcapping",
                 .logitCap = "final_logit_softcapping",
                 .windowPeriod = "sliding_window_pattern",
                 .unread = {"_sliding_window_pattern", "hidden_act"}},
        .modules = {.attentionNorm = "post_attention_layernorm",
                    .mlpNorm = "pre_feedforward_layernorm",
                    .mlpOutputNorm = "post_feedforward_layernorm"},
        .defaults = {.kvHeads = 4,
                     .headDim = 256,
                     .window = 4096,
                     .windowPeriod = 6,
                     .queryWidth = 256,
                     .ropeTheta = 1000000,
                     .paddingToken = 0,
                     .activation = "gelu_pytorch_tanh",
                     .tied = true},
    },
    {
        .architecture = "Phi3ForCausalLM", // Phi-4's too
        .modelType = "phi3",
        .mixer = {.window = WindowRule::kAllLayers},
        .keys = {.residualDropout = "resid_pdrop"},
        .modules = {.queryKeyValue = {"self_attn.qkv_proj"},
                    .mlpInput = {"mlp.gate_up_proj"}},
        .defaults = {.partialRotary = 1,
                     .paddingToken = 32000,
                     .normEpsilon = 1e-5},
    },
    {
        .architecture = "Olmo2ForCausalLM",
        .modelType = "olmo2",
        .mixer = {.inputBias = kByKey, .outputBias = kByKey,
                  .headNorms = HeadNorms::kAllHeads},
        .modules = {.inputNorm = "",
                    .attentionNorm = "post_attention_layernorm",
                    .mlpNorm = "",
                    .mlpOutputNorm = "post_feedforward_layernorm"},
        .defaults = {.paddingToken = 1, .normEpsilon = 1e-5},
    },
    {
        .architecture = "GraniteForCausalLM",
        .modelType = "granite",
        .mixer = {.inputBias = kByKey, .outputBias = kByKey},
        .mlp = {.bias = kByKey},
        .keys = {.attentionScale = "attention_multiplier",
                 .logitDivisor = "logits_scaling",
                 .embeddingScale = "embedding_multiplier",
                 .residualScale = "residual_multiplier"},
        .defaults = {.attentionScale = 1},
    },
    {
        .architecture = "SmolLM3ForCausalLM",
        .modelType = "smollm3",
        .mixer = {.inputBias = kByKey, .outputBias = kByKey,
                  .window = WindowRule::kUnrotated,
                  .rotary = RotaryRule::kSkipping},
        .mlp = {.bias = kByKey},
        .defaults = {.kvHeads = 4,
                     .ropeTheta = 2000000,
                     .paddingToken = 128004,
                     .tied = true},
    },
    {
        .architecture = "GPT2LMHeadModel", // DialoGPT's too
        .modelType = "gpt2",
        .norm = NormKind::kLayer,
        .positions = PositionKind::kLearned,
        .layout = LinearLayout::kInOut,
        .mixer = {.inputBias = kAlways, .outputBias = kAlways},
        .mlp = {.gated = false, .bias = kAlways},
        .keys = {.hiddenSize = "n_embd",
                 .innerSize = "n_inner",
                 .layers = "n_layer",
                 .heads = "n_head",
                 .maxPositions = "n_positions",
                 .normEpsilon = "layer_norm_epsilon",
                 .activation = "activation_function",
                 .embeddingDropout = "embd_pdrop",
                 .residualDropout = "resid_pdrop",
                 .attentionDropout = "attn_pdrop"},
        .modules = {.embedding = "transformer.wte",
                    .positions = "transformer.wpe",
                    .layers = "transformer.h",
                    .finalNorm = "transformer.ln_f",
                    .inputNorm = "ln_1",
                    .queryKeyValue = {"attn.c_attn"},
                    .attentionOutput = "attn.c_proj",
                    .mlpNorm = "ln_2",
                    .mlpInput = {"mlp.c_fc"},
                    .mlpOutput = "mlp.c_proj",
                    .buffers = {".attn.bias", ".attn.masked_bias"}},
        .defaults = {.innerFactor = 4,
                     .padsEmbedding = false,
                     .normEpsilon = 1e-5,
                     .activation = "gelu_new",
                     .dropout = 0.1,
                     .tied = true},
        .vllm = {.lora = false},
    },
    {
        .architecture = "Starcoder2ForCausalLM",
        .modelType = "starcoder2",
        .norm = NormKind::kLayer,
        .mixer = {.inputBias = kUnlessFalse, .outputBias = kUnlessFalse,
                  .window = WindowRule::kAllLayers},
        .mlp = {.gated = false, .bias = kUnlessFalse},
        .keys = {.normEpsilon = "norm_epsilon",
                 .embeddingDropout = "embedding_dropout",
                 .residualDropout = "residual_dropout",
                 .inputBias = "use_bias",
                 .outputBias = "use_bias",
                 .mlpBias = "use_bias",
                 .unread = {"activation_function", "attention_softmax_in_fp32",
                            "layer_norm_epsilon", "mlp_type", "norm_type",
                            "scale_attention_softmax_in_fp32"}},
        .modules = {.mlpInput = {"mlp.c_fc"}, .mlpOutput = "mlp.c_proj"},
        .defaults = {.kvHeads = 2,
                     .normEpsilon = 1e-5,
                     .activation = "gelu_pytorch_tanh",
                     .tied = true},
    },
    {
        .architecture = "StableLmForCausalLM",
        .modelType = "stablelm",
        .norm = NormKind::kLayer,
        .mixer = {.inputBias = kByKey},
        .keys = {.normEpsilon = "layer_norm_eps", .inputBias = "use_qkv_bias"},
        .defaults = {.kvHeads = 32, .partialRotary = 0.25, .normEpsilon = 1e-5},
        .vllm = {.lora = false},
    },
    {
        .architecture = "SeedOssForCausalLM",
        .modelType = "seed_oss",
        .mixer = {.inputBias = kUnlessFalse, .outputBias = kByKey},
        .mlp = {.bias = kByKey},
        .keys = {.residualDropout = "residual_dropout",
                 .outputBias = "attention_out_bias"},
        .defaults = {.kvHeads = 8,
                     .headDim = 128,
                     .paddingToken = 1,
                     .dropout = 0.1},
    },
};

static constexpr Wrapper kWrappers[] = {
    {
        .modelType = "gemma3",
        .architecture = "Gemma3ForConditionalGeneration",
        .textType = "gemma3_text",
        .textModel = "model.language_model",
        .tied = true,
        .others = {"vision_tower", "multi_modal_projector"},
    },
};

std::string Wrapper::modulePath(std::string_view name) const {
  constexpr std::string_view kTextModel = "model.";
  if (!name.starts_with(kTextModel))
    return std::string(name);
  return fmt::format("{}.{}", textModel, name.substr(kTextModel.size()));
}

StatusOr<const Wrapper *> findWrapper(std::string_view modelType) {
  const auto found =
      std::ranges::find(kWrappers, modelType, &Wrapper::modelType);
  if (found != std::end(kWrappers))
    return found;
  std::vector<std::string_view> names;
  for (const Wrapper &wrapper : kWrappers)
    names.push_back(wrapper.modelType);
  return Status::invalid("model_type '{}' with a text_config is not "
                         "supported; supported: {}. Fix: give a folder with "
                         "only the text model",
                         modelType, fmt::join(names, ", "));
}

/// Returns "LlamaForCausalLM, MistralForCausalLM, ...".
static std::string familyNames() {
  std::vector<std::string_view> names;
  for (const Family &family : kFamilies)
    names.push_back(family.architecture);
  return fmt::format("{}", fmt::join(names, ", "));
}

StatusOr<const Family *>
findFamily(const std::vector<std::string> &architectures,
           std::string_view modelType) {
  if (architectures.empty() && modelType.empty())
    return Status::invalid("both 'architectures' and 'model_type' are "
                           "missing; add one");
  if (architectures.empty()) {
    const auto found =
        std::ranges::find(kFamilies, modelType, &Family::modelType);
    if (found != std::end(kFamilies))
      return found;
    return Status::invalid("model type '{}' is not supported; supported are "
                           "{}",
                           modelType, familyNames());
  }
  const auto found = std::ranges::find(kFamilies, architectures.front(),
                                       &Family::architecture);
  if (found == std::end(kFamilies))
    return Status::invalid("architecture '{}' is not supported; supported "
                           "are {}",
                           architectures.front(), familyNames());
  if (!modelType.empty() && modelType != found->modelType)
    return Status::invalid("architecture '{}' and model_type '{}' contradict "
                           "each other; expected model_type '{}'",
                           found->architecture, modelType, found->modelType);
  return found;
}

} // namespace qlora
