// SPDX-License-Identifier: MIT

// Adapters among which rows of a generation choose: plain LoRA adapters of one
// base. A program with space for them (--max-loras) has, for each A and B, a
// parameter [rows, N, columns] in the arena TRAINABLE, whose [:, i] belongs to
// adapter i. Smaller ranks and missing modules are zero. B is multiplied by the
// adapter's scale, alpha / rank.

#ifndef QLORA_RUNTIME_SESSION_ADAPTERCHOICE_H
#define QLORA_RUNTIME_SESSION_ADAPTERCHOICE_H

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Device/Device.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Options/Options.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

struct NamedAdapter {
  std::string name; ///< not empty
  std::string folder;
};

/// Parses the values of --adapter, NAME=DIR or DIR. The name of DIR is its last
/// component. Returns kInvalidArgument for an empty or a repeated name.
StatusOr<std::vector<NamedAdapter>>
parseAdapters(std::span<const std::string> texts);

/// An adapter that a row can choose.
struct PlainAdapter {
  Options options;      ///< that adapter_config.json implies
  SafetensorsFile file; ///< its weights, of which only the header is read
  int64_t rank = 0; ///< the largest of all modules
  /// Last components of the names of its modules, such as "q_proj".
  std::set<std::string> targets = {};
};

/// Reads an adapter folder, without its weights. Returns kInvalidArgument if it
/// is not a plain LoRA of linears: DoRA, biases, modules or tokens that are
/// trained too, adapters of embeddings and experts, or initial adapters that
/// change the base.
StatusOr<PlainAdapter> readPlainAdapter(const std::string &folder);

/// Writes the adapters into the arena TRAINABLE of `device`, which is zero. The
/// i-th adapter gets index i. Errors name the folder and the tensor:
/// kInvalidArgument if its rank is above the program's, if its shape differs
/// from the base, or if the program has no place for it.
Status loadAdapterChoice(const LoadedModule &module,
                         std::span<const NamedAdapter> adapters,
                         Device &device);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_ADAPTERCHOICE_H
