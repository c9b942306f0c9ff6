// SPDX-License-Identifier: MIT

// The experts of a decoder: their keys in config.json, and their tensors. Most
// model files have one tensor per expert and projection. One parameter stacks
// the tensors of all experts of a layer, under the name that transformers and
// PEFT use for the same stack:
//
//   mlp.experts.gate_up_proj  [experts * 2 * inner, hidden]: for each expert
//                             the rows of gate, then the rows of up
//   mlp.experts.down_proj     [experts * hidden, inner]
//
// The files of gpt-oss have stacked tensors: [experts, hidden, 2 * inner], with
// the columns of gate and up interleaved, and [experts, inner, hidden].

#ifndef QLORA_FRONTEND_EXPERTS_H
#define QLORA_FRONTEND_EXPERTS_H

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "frontend/Families.h"
#include "frontend/Weight.h"

namespace qlora {

class JsonFields;
class TensorFinder;
struct ModelConfig;

/// Sizes and settings. A model without experts has a count of 0.
struct ExpertsConfig {
  int64_t count = 0;
  int64_t chosen = 0; ///< per token; at most `count`
  int64_t innerSize = 0;
  int64_t sharedSize = 0;   ///< inner size of the shared expert; 0: none
  bool normalized = false;  ///< a token's expert weights add up to 1
  double routerLoss = 0;    ///< coefficient of the routers' loss; 0: none
  ClampedGlu glu;
  std::vector<bool> layers; ///< per layer: true if it has experts
};

/// Key of config.json: whether the routers have a loss.
inline constexpr const char *kRouterLogits = "output_router_logits";

/// True for keys that `readExperts` reads for this family.
bool understandsExpertKey(const Family &family, std::string_view key);

/// Reads config.experts. Does nothing for a family without experts.
/// config.layers must be set.
Status readExperts(const JsonFields &fields, ModelConfig &config);

/// Adds the keys of the experts to the description `model`
/// (describeArithmetic).
void describeExperts(const ModelConfig &config, nlohmann::ordered_json &model);

/// A parameter that concatenates tensors of the files, all with the same number
/// of rows.
struct StackedWeight {
  std::string name; ///< of the parameter in transformers
  std::vector<Weight> parts;
  std::vector<int64_t> shape;
  LinearLayout layout = LinearLayout::kOutIn; ///< of each expert
  std::optional<Weight> bias;                 ///< [experts, out]
};

struct ExpertWeights {
  std::string module; ///< "model.layers.0.mlp.experts"
  /// [experts, hidden], one part; never quantized. Its bias is [experts].
  StackedWeight router;
  StackedWeight gateUp, down;
};

/// Finds the experts of the layer whose module is `layer`. All experts of a
/// layer must have one type.
StatusOr<ExpertWeights> findExperts(const ModelConfig &config,
                                    TensorFinder &tensors,
                                    const std::string &layer);

} // namespace qlora

#endif // QLORA_FRONTEND_EXPERTS_H
