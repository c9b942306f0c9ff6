// SPDX-License-Identifier: MIT

// Recomputes adapter dropout masks on the host. Kernels never store a mask: an
// element is kept if
//
//   qlora_uniform(seed, micro-batch, op, row, column) >= probability
//
// where row is b T + t for token t of sequence b (T tokens per sequence),
// column is the column of the adapter's input, and both sides are float32
// (Kernels/Math/Philox.h). Kept elements are divided by 1 - probability.
// Adapters of linears with the same input share one op and so one mask.
//
// train.so records the ops, keyed by the parameter name of each lora_A:
//
//   "adapter_dropout": {
//     "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight":
//       {"op": 1, "probability": 0.1}, ...}

#ifndef QLORA_RUNTIME_EXTRAS_DROPOUTMASKS_H
#define QLORA_RUNTIME_EXTRAS_DROPOUTMASKS_H

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Options/Options.h"

namespace qlora {

/// The dropout before one adapter.
struct AdapterDropout {
  std::string module;  ///< PEFT's path: base_model.model.….q_proj
  int64_t columns = 0; ///< columns of the adapter's input
  int64_t op = 0;
  float probability = 0;
};

/// Returns the dropouts in the order of `module`'s parameters; empty without
/// dropout. Returns kDataLoss if the record does not match the adapters of
/// `module`. `options` must include the recorded options.
StatusOr<std::vector<AdapterDropout>>
recordedDropout(const LoadedModule &module, const Options &options);

/// Writes the mask [rows, columns] of one micro-batch, in bytes; 1: kept.
void drawMask(const AdapterDropout &dropout, uint64_t seed, uint64_t microBatch,
              int64_t rows, std::span<uint8_t> mask);

} // namespace qlora

#endif // QLORA_RUNTIME_EXTRAS_DROPOUTMASKS_H
