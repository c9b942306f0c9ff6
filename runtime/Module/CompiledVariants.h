// SPDX-License-Identifier: MIT

// The shapes that a module was compiled for. Data is assigned to these shapes.

#ifndef QLORA_RUNTIME_MODULE_COMPILEDVARIANTS_H
#define QLORA_RUNTIME_MODULE_COMPILEDVARIANTS_H

#include <cstdint>
#include <vector>

#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// Cost of a micro-batch, in any unit, such as FLOPs.
struct PackingCosts {
  double token = 1; ///< cost per token of a bucket, including padding
  double pair = 0;  ///< cost per pair of a query and a visible key of one row

  /// Returns the cost of a row's tokens and causal pairs.
  double ofRow(int64_t length) const {
    const double tokens = static_cast<double>(length);
    return token * tokens + pair * tokens * (tokens + 1) / 2;
  }
};

/// Whether the program trains. Else it only generates.
bool trains(const LoadedModule &module);

/// The shapes of a program: batches of rows in several lengths, and token
/// buckets of one sequence each. With batch 1, each length is also a bucket.
/// of() returns kDataLoss if an entry of a variant is missing.
struct CompiledVariants {
  int64_t batch = 0;
  /// Compiled lengths of a batch, in tokens per sequence, ascending.
  std::vector<int64_t> lengths;
  /// Size of the vocabulary, which the tables lack: 0 until the caller sets it.
  int64_t vocabSize = 0;
  std::vector<int64_t> buckets = {}; ///< tokens per bucket, ascending
  PackingCosts costs = {};           ///< costs in the last bucket, in FLOPs
  /// Sequences per row of data, set by the caller. 2 for preference pairs (all
  /// chosen answers of a micro-batch, then all rejected ones), and for answers
  /// followed by mismatched ones (Data/KtoKlPairs.h).
  int64_t sides = 1;
  /// Whether rows have one answer each, desirable or not; set by the caller.
  bool isUnpaired = false;

  /// Rows in the file for each row of data.
  int64_t sidesInFile() const { return isUnpaired ? 1 : sides; }

  static StatusOr<CompiledVariants> of(const LoadedModule &module);
};

} // namespace qlora

#endif // QLORA_RUNTIME_MODULE_COMPILEDVARIANTS_H
