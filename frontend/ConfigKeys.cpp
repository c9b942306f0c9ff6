// SPDX-License-Identifier: MIT

#include "frontend/ConfigKeys.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "frontend/Experts.h"
#include "frontend/JsonFields.h"

using nlohmann::json;

namespace qlora {

// clang-format off
/// Keys that HfConfig.cpp and the files it calls read for every family.
static const std::set<std::string_view> kReadKeys = {
    "architectures", "head_dim", "layer_types",
    "max_window_layers", "model_type", "num_key_value_heads",
    "original_max_position_embeddings", "partial_rotary_factor",
    "quantization_config",
    "rope_parameters", "rope_scaling", "rope_theta", "sliding_window",
    "tie_word_embeddings", "use_sliding_window", "vocab_size",
};

/// Keys that do not change the model's arithmetic: names, special tokens,
/// generation, labels, initialisation, and choices of how a framework computes
/// (`pretraining_tp` splits a matmul into several). Each tensor is read in its
/// stored type, so `dtype` and `torch_dtype` have no effect.
static const std::set<std::string_view> kHarmlessKeys = {
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash",
    "_flash_attn_2_enabled", "_name_or_path", "attn_implementation",
    "auto_map", "bad_words_ids", "begin_suppress_tokens", "bos_token_id",
    "cache_implementation", "cls_token_id", "decoder_start_token_id",
    "diversity_penalty", "do_sample", "dtype", "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id", "exponential_decay_length_penalty", "finetuning_task",
    "forced_bos_token_id", "forced_eos_token_id", "gradient_checkpointing",
    "id2label", "initializer_range", "is_decoder", "is_llama_config",
    "label2id", "length_penalty", "max_length", "max_sequence_length",
    "mask_token_id", "min_length", "model_max_length", "n_ctx", "name_or_path",
    "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_labels",
    "num_return_sequences", "output_attentions", "output_hidden_states",
    "output_scores", "pad_token", "pad_token_id", "prefix", "pretraining_tp",
    "problem_type", "remove_invalid_values", "repetition_penalty",
    "return_dict", "return_dict_in_generate", "sep_token_id",
    "summary_activation",
    "summary_first_dropout", "summary_proj_to_labels", "summary_type",
    "summary_use_proj", "suppress_tokens", "task_specific_params",
    "temperature", "tokenizer_class", "top_k", "top_p", "torch_dtype",
    "torchscript", "transformers.js_config", "transformers_version",
    "typical_p", "unk_token_id", "unsloth_fixed", "unsloth_version",
    "use_bfloat16", "use_cache", "use_flash_attention",
};
// clang-format on

namespace {
/// A key and the JSON value at which it changes nothing.
struct NeutralKey {
  std::string_view name;
  std::string_view neutral;
};
} // namespace

static constexpr NeutralKey kNeutralKeys[] = {
    {"add_cross_attention", "false"},
    {"alibi", "false"},
    {"attention_chunk_size", "null"},
    {"attention_dropout", "0"},
    {"attention_bias", "false"},
    {"attention_multiplier", "null"},
    {"attention_out_bias", "false"},
    {"attn_logit_softcapping", "null"},
    {"chunk_size_feed_forward", "0"},
    {"clip_qkv", "null"},
    {"cross_attention_hidden_size", "null"},
    {"dim_model_base", "null"},
    {"embd_pdrop", "0"},
    {"embedding_multiplier", "1"},
    {"final_logit_softcapping", "null"},
    {"full_attn_mod", "1"},
    {"hidden_dropout", "0"},
    {"interpolate_factor", "1"},
    {"is_causal", "true"},
    {"is_encoder_decoder", "false"},
    {"logit_scale", "1"},
    {"logits_scaling", "1"},
    {"mlp_bias", "false"},
    {"mup_multiplier", "1"},
    {"no_rope_layers", "[]"},
    {"num_experts", "0"},
    {"num_experts_per_tok", "0"},
    {"num_local_experts", "0"},
    {"per_layer_config", "{}"},
    {"pruned_heads", "{}"},
    {"qk_layernorm", "false"},
    {"query_pre_attn_scalar", "null"},
    {"resid_pdrop", "0"},
    {"reorder_and_upcast_attn", "false"},
    {"residual_dropout", "0"},
    {"residual_multiplier", "1"},
    {"rope_interleaved", "false"},
    {"scale_attn_by_inverse_layer_idx", "false"},
    {"scale_attn_weights", "true"},
    {"scale_depth", "null"},
    {"scale_emb", "1"},
    {"swiglu_limit", "null"},
    {"text_config", "null"},
    {"tie_encoder_decoder", "false"},
    {"use_bidirectional_attention", "false"},
    {"use_qk_norm", "false"},
};

// clang-format off
/// Substrings of key names that suggest arithmetic.
static constexpr std::string_view kTellingParts[] = {
    "act_fn",  "activation", "alibi",    "attention", "attn", "bias",
    "causal",  "drop",       "embed",    "expert",    "head", "layer",
    "logit",   "mlp",        "moe",      "mup",       "multiplier",
    "norm",    "parallel",   "position", "residual",  "rope", "rotary",
    "scal",    "softcap",    "window",
};
// clang-format on

/// True for null, {}, [] and "", which turn off the feature of any key.
static bool isEmpty(const json &value) {
  return value.is_null() ||
         ((value.is_structured() || value.is_string()) && value.empty());
}

static Status refuseKey(const std::string &name, const json &value,
                        std::string_view neutral) {
  return Status::invalid(
      "config key '{}' is {}, which changes the model's arithmetic and is not "
      "supported{}",
      name, shortDump(value),
      neutral.empty() ? std::string()
                      : fmt::format("; only {} is supported", neutral));
}

static Status checkUnknownKey(const std::string &name, const json &value,
                              std::vector<std::string> &warnings) {
  if (value == false)
    return Status::ok();
  if (std::ranges::any_of(kTellingParts, [&](std::string_view part) {
        return name.find(part) != std::string::npos;
      }))
    return refuseKey(name, value, "");
  warnings.push_back(fmt::format("config key '{}' ({}) is unknown and was "
                                 "ignored",
                                 name, shortDump(value)));
  return Status::ok();
}

/// True for a key that this family reads and some other families do not.
static bool understandsKey(const Family &family, std::string_view key) {
  const ConfigNames &keys = family.keys;
  const std::string_view names[] = {
      keys.hiddenSize,     keys.innerSize,       keys.layers,
      keys.heads,          keys.maxPositions,    keys.normEpsilon,
      keys.activation,     keys.embeddingDropout, keys.residualDropout,
      keys.attentionDropout, keys.inputBias,     keys.outputBias,
      keys.mlpBias,        keys.queryWidth,      keys.attentionScale,
      keys.attentionCap,   keys.logitCap,        keys.logitDivisor,
      keys.embeddingScale, keys.residualScale,   keys.windowPeriod};
  if (family.mixer.rotary == RotaryRule::kByLayerType &&
      key == "rope_local_base_freq")
    return true;
  if (family.mixer.rotary == RotaryRule::kSkipping &&
      (key == "no_rope_layers" || key == "no_rope_layer_interval"))
    return true;
  if (key.empty())
    return false;
  return std::ranges::find(names, key) != std::end(names) ||
         std::ranges::find(keys.unread, key) != std::end(keys.unread) ||
         understandsExpertKey(family, key);
}

Status checkConfigKeys(const json &config, const Family &family,
                       std::vector<std::string> &warnings) {
  for (const auto &[name, value] : config.items()) {
    if (kReadKeys.contains(name) || understandsKey(family, name) ||
        kHarmlessKeys.contains(name) || isEmpty(value))
      continue;
    const auto rule = std::ranges::find(kNeutralKeys, name, &NeutralKey::name);
    if (rule == std::end(kNeutralKeys)) {
      QLORA_RETURN_IF_ERROR(checkUnknownKey(name, value, warnings));
      continue;
    }
    if (value != json::parse(rule->neutral))
      return refuseKey(name, value, rule->neutral);
  }
  return Status::ok();
}

} // namespace qlora
