// SPDX-License-Identifier: MIT

// Reads config.json of a Hugging Face model folder. Uses transformers' defaults
// and checks every value. Refuses keys that mean unsupported arithmetic, and
// names them.

#ifndef QLORA_FRONTEND_HFCONFIG_H
#define QLORA_FRONTEND_HFCONFIG_H

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/Experts.h"
#include "frontend/Families.h"
#include "frontend/Rope.h"
#include "runtime/Kernels/Math/Stored.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Dropout probabilities in training.
struct DropoutConfig {
  double embedding = 0;
  double residual = 0; ///< of attention and MLP outputs
  double attention = 0; ///< of the softmax; see checkTraining()
};

/// Rotary positions of some layers.
struct Rotary {
  RopeConfig rope;
  std::vector<float> frequencies;     ///< rope.rotated / 2 values
  std::vector<float> longFrequencies; ///< for longrope; else empty
};

/// Sizes and settings of a decoder. All counts are above 0, and kvHeads divides
/// heads.
struct ModelConfig {
  const Family *family = nullptr;
  const Wrapper *wrapper = nullptr; ///< null: the folder is a text model
  int64_t vocabSize = 0;
  int64_t hiddenSize = 0;
  int64_t innerSize = 0; ///< of the MLP
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kvHeads = 0;
  int64_t headDim = 0;
  /// 0: config.json has none. For learned positions, the table's rows.
  int64_t maxPositions = 0;
  int64_t paddingToken = -1; ///< its embedding is not trained; -1: none
  double normEpsilon = 0;
  std::string activation; ///< a name of model.activation
  bool tied = false;
  bool qkvBias = false;
  bool outputBias = false; ///< of the attention
  bool mlpBias = false;
  ExpertsConfig experts;
  std::optional<bool> givenRouterLogits; ///< of the importer's flag
  DropoutConfig dropout;
  double embeddingScale = 1, residualScale = 1, logitScale = 1;
  double attentionScale = 0;             ///< factor of the attention scores
  double attentionCap = 0, logitCap = 0; ///< c of c * tanh(x / c); 0: none
  std::vector<Rotary> rotaries;
  std::vector<int> rotaryOfLayer; ///< index in `rotaries`; -1: no RoPE
  std::vector<int64_t> windows;   ///< by layer, in tokens; 0: no window
  /// Format of the weights that are quantized in the files; null: none.
  const StoredFormat *storedFormat = nullptr;
  const char *unquantizedKey = ""; ///< key in config.json of the next list
  std::vector<std::string> unquantizedModules;
  bool isChosenByFiles = false; ///< true: any linear may be unquantized
  /// Number of inputs that share a scale, or -1 if all inputs of an output do.
  /// Not set if config.json does not contain it.
  std::optional<int64_t> storedBlock;
  /// One line each, for the user.
  std::vector<std::string> warnings;

  /// Converts a path of ModuleNames to the module's path in the class that
  /// transformers creates. In a wrapper, for example, `model.norm` becomes
  /// `model.language_model.norm`.
  std::string modulePath(std::string_view name) const {
    return wrapper ? wrapper->modulePath(name) : std::string(name);
  }
};

/// Reads FOLDER/config.json. `instead` replaces its dropout rates, and whether
/// the routers have a loss; its keys are the importer's flags
/// `embedding_dropout`, `residual_dropout`, `attention_dropout` and
/// `output_router_logits`.
StatusOr<ModelConfig> readHfConfig(const std::string &folder,
                                   const nlohmann::json &instead = {});

/// Parses the text of a config.json.
StatusOr<ModelConfig> parseHfConfig(std::string_view text,
                                    const nlohmann::json &instead = {});

/// Refuses models with dropout of attention weights, which no kernel supports.
/// Parsing accepts them, because dropout affects only training.
Status checkTraining(const ModelConfig &config);

} // namespace qlora

#endif // QLORA_FRONTEND_HFCONFIG_H
