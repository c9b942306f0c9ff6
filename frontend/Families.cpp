// SPDX-License-Identifier: MIT

// The table of model families.

#include "frontend/Families.h"

namespace qlora {

// clang-format off
static constexpr Family kFamilies[] = {
    // architecture, model_type, attention bias, mlp_bias, q/k norm, window,
    //   default kv heads, head_dim, window, epsilon, tied
    {"LlamaForCausalLM", "llama", AttentionBias::kByKey, true, false,
     WindowRule::kNone, 0, 0, 0, 1e-6, false},
    {"MistralForCausalLM", "mistral", AttentionBias::kNone, false, false,
     WindowRule::kAll, 8, 0, 4096, 1e-6, false},
    {"Qwen2ForCausalLM", "qwen2", AttentionBias::kQkv, false, false,
     WindowRule::kByLayers, 32, 0, 4096, 1e-6, false},
    {"Qwen3ForCausalLM", "qwen3", AttentionBias::kByKey, false, true,
     WindowRule::kByLayers, 32, 128, 4096, 1e-6, false},
};
// clang-format on

std::span<const Family> families() { return kFamilies; }

const Family *findArchitecture(std::string_view architecture) {
  for (const Family &family : kFamilies)
    if (family.architecture == architecture)
      return &family;
  return nullptr;
}

const Family *findModelType(std::string_view modelType) {
  for (const Family &family : kFamilies)
    if (family.modelType == modelType)
      return &family;
  return nullptr;
}

std::string familyNames() {
  std::string names;
  for (const Family &family : kFamilies) {
    if (!names.empty())
      names += ", ";
    names += family.architecture;
  }
  return names;
}

} // namespace qlora
