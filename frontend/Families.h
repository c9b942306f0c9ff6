// SPDX-License-Identifier: MIT

// The model families. A record holds the names of a family, and behaviour that
// config.json does not state. HfConfig.cpp, DecoderWeights.cpp and
// DecoderBuilder.cpp read these records and never compare family names. To
// support a family with a new property, add a field for the property.

#ifndef QLORA_FRONTEND_FAMILIES_H
#define QLORA_FRONTEND_FAMILIES_H

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/Status.h"

namespace qlora {

enum class BiasRule {
  kNever,
  kByKey,       ///< if the key is true
  kUnlessFalse, ///< if the key is true or missing
  kAlways,
};

/// Rules for which layers attend only to a window of past tokens.
enum class WindowRule {
  kNone,     ///< none; a `sliding_window` key is refused
  kAllLayers, ///< all, if `sliding_window` is a number
  kByLayers, ///< none without `use_sliding_window`; else `layer_types`, or if
             ///< that is missing, layers from `max_window_layers` on
  kPeriodic, ///< `layer_types`, or if that is missing, all but each
             ///< `sliding_window_pattern`-th layer
  kUnrotated, ///< none without `use_sliding_window`; else `layer_types`, or if
              ///< that is missing, layers without RoPE
};

enum class NormKind {
  kRms,
  kRmsAboveOne, ///< stored as weight - 1
  kLayer,       ///< with the mean subtracted, and a bias
};

/// Norms of q and k, before RoPE.
enum class HeadNorms {
  kNone,
  kByHead,
  kAllHeads, ///< over all heads together
};

/// How RoPE applies to q and k, if positions are rotary.
enum class RotaryRule {
  kGlobalRope,
  kByLayerType, ///< layers with a window have parameters of their own
  kSkipping,    ///< no RoPE in layers with a 0 in `no_rope_layers`
};

enum class PositionKind {
  kRotary,
  kLearned, ///< a table, added to the embedding
};

/// Layout of a linear's weight in the files.
enum class LinearLayout {
  kOutIn, ///< torch.nn.Linear
  kInOut, ///< transformers' Conv1D, unless the weight is quantized
};

/// Names of keys in config.json. Empty: the family has no such key.
struct ConfigNames {
  const char *hiddenSize = "hidden_size";
  const char *innerSize = "intermediate_size";
  const char *layers = "num_hidden_layers";
  const char *heads = "num_attention_heads";
  const char *maxPositions = "max_position_embeddings";
  const char *normEpsilon = "rms_norm_eps";
  const char *activation = "hidden_act";
  const char *embeddingDropout = "";
  const char *residualDropout = "";
  const char *attentionDropout = "attention_dropout";
  const char *inputBias = "attention_bias"; ///< of q, k and v
  const char *outputBias = "attention_bias";
  const char *mlpBias = "mlp_bias";
  const char *queryWidth = "";     ///< w of scores / sqrt(w)
  const char *attentionScale = ""; ///< s of scores * s
  const char *attentionCap = "";   ///< c of c * tanh(scores / c)
  const char *logitCap = "";
  const char *logitDivisor = "";
  const char *embeddingScale = "";
  const char *residualScale = ""; ///< factor of attention and MLP outputs
  const char *windowPeriod = "";
  /// Keys that the family's files have and transformers does not use.
  std::array<std::string_view, 6> unread = {};
};

/// Module paths. Paths in a layer are relative to `layers`.N. If one linear
/// computes several outputs, such as q, k and v, only the first output has a
/// path. An empty path of a norm means that there is no such norm.
struct ModuleNames {
  std::string_view embedding = "model.embed_tokens";
  std::string_view positions = ""; ///< table of learned positions
  std::string_view layers = "model.layers";
  std::string_view finalNorm = "model.norm";
  std::string_view head = "lm_head";

  std::string_view inputNorm = "input_layernorm";
  std::array<std::string_view, 3> queryKeyValue = {
      "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
  std::string_view attentionOutput = "self_attn.o_proj";
  std::string_view attentionNorm = ""; ///< of attention's output
  std::string_view sinks = ""; ///< one attention score per head
  std::string_view queryNorm = "self_attn.q_norm";
  std::string_view keyNorm = "self_attn.k_norm";

  std::string_view mlpNorm = "post_attention_layernorm";
  std::array<std::string_view, 2> mlpInput = {"mlp.gate_proj", "mlp.up_proj"};
  std::string_view mlpOutput = "mlp.down_proj";
  std::string_view mlpOutputNorm = ""; ///< of the MLP's output

  /// Suffixes of tensor names in older files. Such tensors are ignored.
  std::array<std::string_view, 2> buffers = {"rotary_emb.inv_freq"};
};

struct Mixer {
  BiasRule inputBias = BiasRule::kNever; ///< of q, k and v
  BiasRule outputBias = BiasRule::kNever;
  HeadNorms headNorms = HeadNorms::kNone;
  WindowRule window = WindowRule::kNone;
  RotaryRule rotary = RotaryRule::kGlobalRope;
};

struct Mlp {
  bool gated = true; ///< activation(gate) * up; false: activation(up)
  BiasRule bias = BiasRule::kNever;
};

/// Changes to the activation of a gated MLP, as in gpt-oss.
struct ClampedGlu {
  double limit = 0; ///< of gate and up; 0: none
  double slope = 1; ///< factor of the sigmoid's argument in silu
  double offset = 0; ///< added to up
  const char *limitKey = "", *slopeKey = "";
};

/// A mixture of experts instead of the MLP (Experts.h).
struct Experts {
  std::string_view router = ""; ///< path inside a layer; empty: no experts
  std::string_view each = "";   ///< path in the files before the expert's index
  std::array<std::string_view, 3> projections = {"gate_proj", "up_proj",
                                                 "down_proj"};
  /// Module paths in transformers, which can differ from those in the files.
  std::string_view module = "mlp.experts", routerModule = "mlp.gate";
  /// Keys of the number of experts: the usual one and an alternative.
  std::array<const char *, 2> countKeys = {"num_experts", "num_local_experts"};
  const char *innerKey = "moe_intermediate_size";
  /// Paths of the shared expert, an additional MLP for all tokens, and of the
  /// linear that computes its gate. Empty: none.
  std::string_view shared = "", sharedGate = "";
  const char *sharedKey = "shared_expert_intermediate_size";
  bool alwaysNormalized = false; ///< false: according to `norm_topk_prob`
  /// The files stack all experts of a layer, [experts, in, out], as
  /// transformers does. Columns of gate and up alternate, gate first.
  bool areStacked = false;
  bool haveBiases = false; ///< experts and router have biases
  ClampedGlu glu = {};
  /// `decoder_sparse_step` and `mlp_only_layers` select layers with an MLP.
  bool hasDenseLayers = false;

  constexpr bool isThere() const { return !router.empty(); }
};

/// transformers' values for missing keys. 0 means "computed from other keys".
struct ConfigDefaults {
  int64_t kvHeads = 0;
  int64_t headDim = 0;
  int64_t window = 0; ///< `sliding_window`, in tokens; null: no window
  int64_t windowPeriod = 0;
  double queryWidth = 0, attentionScale = 0;
  double attentionCap = 0, logitCap = 0; ///< null in config.json: no cap
  double ropeTheta = 10000;
  const char *rope = ""; ///< an object like `rope_scaling`
  double windowedRopeTheta = 10000; ///< of RotaryRule::kByLayerType
  /// `partial_rotary_factor`; 0: the family has no such key.
  double partialRotary = 0;
  int64_t innerFactor = 0; ///< times the hidden size; 0: key required
  /// `pad_token_id`, whose row of the embedding gets no gradient; -1: none.
  int64_t paddingToken = -1;
  bool padsEmbedding = true; ///< false: `pad_token_id` has no effect
  double normEpsilon = 1e-6;
  const char *activation = "silu";
  double dropout = 0; ///< of each kind for which the family has a key
  bool tied = false;  ///< `tie_word_embeddings`
};

/// What vLLM supports of the class. GgufFamilies.h says what llama.cpp lacks.
struct VllmSupport {
  bool lora = true; ///< docs/models/supported_models.md, column LoRA
  bool stackedExperts = false; ///< is_3d_moe_weight of the class
};

struct Family {
  std::string_view architecture; ///< in `architectures`
  std::string_view modelType;    ///< `model_type`
  NormKind norm = NormKind::kRms;
  PositionKind positions = PositionKind::kRotary;
  LinearLayout layout = LinearLayout::kOutIn;
  /// Multiplies embeddings by sqrt(width), rounded to the embeddings' type.
  bool scalesEmbedding = false;
  Mixer mixer = {};
  Mlp mlp = {};
  Experts experts = {};
  ConfigNames keys = {};
  ModuleNames modules = {};
  ConfigDefaults defaults = {};
  VllmSupport vllm = {};
};

/// A multimodal model type, whose config.json has the text model's keys in
/// `text_config`. `architecture` is the class that AutoModelForCausalLM creates
/// for the folder. PEFT names adapter tensors by module paths in that class.
struct Wrapper {
  std::string_view modelType;    ///< `model_type` of the folder
  std::string_view architecture; ///< the class that is created
  std::string_view textType;     ///< `model_type` if text_config has none
  /// Replaces the leading "model" of paths in ModuleNames, for example by
  /// "model.language_model".
  std::string_view textModel;
  bool tied; ///< default of `tie_word_embeddings`
  /// Modules of the class outside of the text model. They get no adapters.
  std::array<std::string_view, 2> others;

  /// Converts a path of ModuleNames to the module's path in `architecture`.
  std::string modulePath(std::string_view name) const;
};

/// Finds a wrapper by the `model_type` of a config.json with a text_config.
StatusOr<const Wrapper *> findWrapper(std::string_view modelType);

/// Finds a family by `architectures`, or by `model_type` if there are none. If
/// both are given, they must agree.
StatusOr<const Family *>
findFamily(const std::vector<std::string> &architectures,
           std::string_view modelType);

} // namespace qlora

#endif // QLORA_FRONTEND_FAMILIES_H
