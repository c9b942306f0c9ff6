// SPDX-License-Identifier: MIT

// The experts of a decoder: what config.json says of them, and their tensors.
// Most files have a tensor for each expert and projection; a parameter is all of
// a layer's, stacked as transformers stacks them, which is how PEFT names them:
//
//   mlp.experts.gate_up_proj  [experts * 2 * inner, hidden]: of each expert all
//                             rows of gate, then all of up
//   mlp.experts.down_proj     [experts * hidden, inner]
//
// Those of gpt-oss are stacked in the files: [experts, hidden, 2 * inner] and
// [experts, inner, hidden], with gate and up in turns.

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

/// In numbers. A model without experts has a count of 0.
struct ExpertsConfig {
  int64_t count = 0;
  int64_t chosen = 0; ///< of each token; at most `count`
  int64_t innerSize = 0;
  int64_t sharedSize = 0; ///< of the MLP beside them; 0: none
  bool normalized = false;  ///< the weights of the chosen add up to 1
  double routerLoss = 0;    ///< what its routers' loss is multiplied with
  ClampedGlu glu;
  std::vector<bool> layers; ///< which have experts, not an MLP
};

/// True for keys that `readExperts` reads of this family.
bool understandsExpertKey(const Family &family, std::string_view key);

/// Nothing for a family without experts. `layers` is read already.
Status readExperts(const JsonFields &fields, ModelConfig &config);

/// What decides numbers, for ModelIdentity.
void describeExperts(const ModelConfig &config, nlohmann::ordered_json &model);

/// A parameter that is one or several tensors of the files, one above the other,
/// each with as many rows as the others. `name` is what transformers calls it.
struct StackedWeight {
  std::string name;
  std::vector<Weight> parts;
  std::vector<int64_t> shape;
  LinearLayout layout = LinearLayout::kOutIn; ///< of each expert
  std::optional<Weight> bias;                 ///< [experts, out]
};

struct ExpertWeights {
  std::string module; ///< "model.layers.0.mlp.experts"
  /// [experts, hidden], one part; never quantised. Its bias is [experts].
  StackedWeight router;
  StackedWeight gateUp, down;
};

/// Of the layer whose module is `layer`: as the tensors of a linear, but of
/// one type in all experts, and not quantised.
StatusOr<ExpertWeights> findExperts(const ModelConfig &config,
                                    TensorFinder &tensors,
                                    const std::string &layer);

} // namespace qlora

#endif // QLORA_FRONTEND_EXPERTS_H
