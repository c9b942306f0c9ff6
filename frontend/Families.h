// SPDX-License-Identifier: MIT

// The model families, one record each: what a family does that its config.json
// does not say, and how it names things. HfConfig.cpp reads a config.json by
// the record, DecoderWeights.cpp finds tensors by it and DecoderBuilder.cpp
// builds a layer by it; none of them asks which family it is. What a record
// cannot say is a new column, with one reader.

#ifndef QLORA_FRONTEND_FAMILIES_H
#define QLORA_FRONTEND_FAMILIES_H

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/Status.h"

namespace qlora {

enum class BiasRule { kNever, kByKey, kAlways };

/// Which layers see only a window of the past.
enum class WindowRule {
  kNone,     ///< none; a `sliding_window` key is refused
  kAll,      ///< all, if `sliding_window` is a number
  kByLayers, ///< `layer_types`, or else layers from `max_window_layers` on,
             ///< and only if `use_sliding_window`
  kPeriodic, ///< `layer_types`, or else all but the last of each
             ///< `sliding_window_pattern` layers
  kUnrotated, ///< `layer_types`, or else layers without RoPE, and only if
              ///< `use_sliding_window`
};

enum class NormKind {
  kRms,
  kRmsAboveOne, ///< the weight is stored less 1
  kLayer,       ///< with the mean subtracted, and a bias
};

/// Norms of q and k, before RoPE.
enum class HeadNorms {
  kNone,
  kByHead,
  kWhole, ///< of all heads together
};

/// How positions turn q and k, where they are rotary.
enum class RotaryRule {
  kOne,
  kByLayerType, ///< layers with a window have parameters of their own
  kSkipping,    ///< not in the layers that `no_rope_layers` has a 0 for
};

enum class PositionKind {
  kRotary,
  kLearned, ///< a table, added to the embedding
};

/// How the files have the weight of a linear.
enum class LinearLayout {
  kOutIn, ///< torch.nn.Linear
  kInOut, ///< transformers' Conv1D; quantised it is a Linear
};

/// config.json's names for what every decoder has. An empty name: the family
/// has no such key.
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
  const char *queryWidth = ""; ///< scores are divided by its root
  const char *attentionScale = ""; ///< scores are multiplied with it
  const char *attentionCap = "";   ///< c of c * tanh(scores / c)
  const char *logitCap = "";
  const char *logitDivisor = "";
  const char *embeddingScale = "";
  const char *residualScale = ""; ///< of what a layer adds
  const char *windowPeriod = "";
  /// Those that the family's files have and transformers does not use.
  std::array<std::string_view, 6> unread = {};
};

/// Paths of modules; those of a layer are inside `layers`.N. Parts that one
/// linear computes side by side have one name together. A norm without a name
/// is not there.
struct ModuleNames {
  std::string_view embedding = "model.embed_tokens";
  std::string_view positions = ""; ///< of learned ones
  std::string_view layers = "model.layers";
  std::string_view finalNorm = "model.norm";
  std::string_view head = "lm_head";

  std::string_view inputNorm = "input_layernorm";
  std::array<std::string_view, 3> queryKeyValue = {
      "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
  std::string_view attentionOutput = "self_attn.o_proj";
  std::string_view attentionNorm = ""; ///< of what attention adds
  std::string_view sinks = ""; ///< of attention: a score for each head
  std::string_view queryNorm = "self_attn.q_norm";
  std::string_view keyNorm = "self_attn.k_norm";

  std::string_view mlpNorm = "post_attention_layernorm";
  std::array<std::string_view, 2> mlpInput = {"mlp.gate_proj", "mlp.up_proj"};
  std::string_view mlpOutput = "mlp.down_proj";
  std::string_view mlpOutputNorm = ""; ///< of what the MLP adds

  /// Ends of the names of tensors that older files have and nobody reads.
  std::array<std::string_view, 2> buffers = {"rotary_emb.inv_freq"};
};

struct Mixer {
  BiasRule inputBias = BiasRule::kNever; ///< of q, k and v
  BiasRule outputBias = BiasRule::kNever;
  HeadNorms headNorms = HeadNorms::kNone;
  WindowRule window = WindowRule::kNone;
  RotaryRule rotary = RotaryRule::kOne;
};

struct Mlp {
  bool gated = true; ///< activation(gate) * up, else activation(up)
  BiasRule bias = BiasRule::kNever;
};

/// gate * f(gate) of a gated MLP, where it is not plain: gpt-oss's.
struct ClampedGlu {
  double limit = 0; ///< of gate and up; 0: none
  double slope = 1; ///< inside of the sigmoid of silu
  double offset = 0; ///< added to up
  const char *limitKey = "", *slopeKey = "";
};

/// A mixture of experts in place of the MLP (Experts.h).
struct Experts {
  std::string_view router = ""; ///< inside a layer; empty: no experts
  std::string_view each = "";   ///< in the files, before the expert's number
  std::array<std::string_view, 3> projections = {"gate_proj", "up_proj",
                                                 "down_proj"};
  /// Where transformers has them, whatever the files say.
  std::string_view module = "mlp.experts", routerModule = "mlp.gate";
  /// The key of their number, and another name that it may have.
  std::array<const char *, 2> countKeys = {"num_experts", "num_local_experts"};
  const char *innerKey = "moe_intermediate_size";
  /// An MLP for all tokens beside them, and the linear of its gate; empty: none.
  std::string_view shared = "", sharedGate = "";
  const char *sharedKey = "shared_expert_intermediate_size";
  bool alwaysNormalized = false; ///< else by `norm_topk_prob`
  /// The files have a layer's as transformers has them, [experts, in, out], with
  /// a row of gate before each of up.
  bool areStacked = false;
  bool haveBiases = false; ///< and the router
  ClampedGlu glu = {};
  bool hasDenseLayers = false; ///< by `decoder_sparse_step`, `mlp_only_layers`

  constexpr bool isThere() const { return !router.empty(); }
};

/// What transformers takes for a missing key; 0 means "computed from other
/// keys".
struct ConfigDefaults {
  int64_t kvHeads = 0;
  int64_t headDim = 0;
  int64_t window = 0; ///< where `sliding_window` is missing, not null
  int64_t windowPeriod = 0;
  double queryWidth = 0, attentionScale = 0;
  double attentionCap = 0, logitCap = 0; ///< where missing, not null
  double ropeTheta = 10000;
  const char *rope = ""; ///< an object like `rope_scaling`
  double windowedRopeTheta = 10000; ///< of RotaryRule::kByLayerType
  /// `partial_rotary_factor`; 0: the family has no such key.
  double partialRotary = 0;
  int64_t innerFactor = 0; ///< times the hidden size; 0: the key must be there
  bool biases = false; ///< of the keys of BiasRule::kByKey
  /// `pad_token_id`, whose row of the embedding gets no gradient; -1: none.
  int64_t paddingToken = -1;
  bool padsEmbedding = true; ///< false: there is no such row
  double normEpsilon = 1e-6;
  const char *activation = "silu";
  double dropout = 0; ///< of each kind that the family has a key for
  bool tied = false;  ///< `tie_word_embeddings`
};

struct Family {
  std::string_view architecture; ///< in `architectures`
  std::string_view modelType;    ///< `model_type`
  NormKind norm = NormKind::kRms;
  PositionKind positions = PositionKind::kRotary;
  LinearLayout layout = LinearLayout::kOutIn;
  /// Embeddings times the root of their width, rounded to their type.
  bool scalesEmbedding = false;
  Mixer mixer = {};
  Mlp mlp = {};
  Experts experts = {};
  ConfigNames keys = {};
  ModuleNames modules = {};
  ConfigDefaults defaults = {};
};

/// A model type whose config.json has the text model's keys in `text_config`,
/// and what transformers' AutoModelForCausalLM makes of its folder. PEFT names
/// modules, and so the tensors of adapters, by the paths inside of that class.
struct Wrapper {
  std::string_view modelType;    ///< `model_type` of the folder
  std::string_view architecture; ///< the class that is made
  std::string_view textType;     ///< `model_type` of a text_config without one
  /// Path of the text model in the class: what ModuleNames calls "model".
  std::string_view textModel;
  bool tied; ///< `tie_word_embeddings` of the folder where it is missing
  /// Modules of the class beside the text model, which stay as they are.
  std::array<std::string_view, 2> others;

  /// Path in the class of a module that ModuleNames calls `name`.
  std::string modulePath(std::string_view name) const;
};

/// By `model_type` of a config.json with a text_config.
StatusOr<const Wrapper *> findWrapper(std::string_view modelType);

/// By `architectures` of a config.json, or where it has none by `model_type`,
/// which may be empty but not another family's.
StatusOr<const Family *>
findFamily(const std::vector<std::string> &architectures,
           std::string_view modelType);

} // namespace qlora

#endif // QLORA_FRONTEND_FAMILIES_H
