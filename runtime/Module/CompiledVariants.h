// SPDX-License-Identifier: MIT

// The shapes that a module was compiled for, to which data is assigned.

#ifndef QLORA_RUNTIME_MODULE_COMPILEDVARIANTS_H
#define QLORA_RUNTIME_MODULE_COMPILEDVARIANTS_H

#include <cstdint>
#include <vector>

#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// Cost of a step, in any one unit (FLOPs).
struct PackingCosts {
  double token = 1; ///< per token of a bucket, including padding
  double pair = 0;  ///< per pair of a query and a visible key of one row

  /// Cost of a row's own tokens and pairs; causal.
  double ofRow(int64_t length) const {
    const double tokens = static_cast<double>(length);
    return token * tokens + pair * tokens * (tokens + 1) / 2;
  }
};

/// Compiled shapes: batches of rows in several lengths, and token buckets,
/// which have one sequence. With batch 1, each length is also a bucket. of()
/// returns kDataLoss if an entry of a variant is missing.
struct CompiledVariants {
  int64_t batch = 0;
  std::vector<int64_t> lengths; ///< of `batch` sequences, ascending
  /// Token ids; 0 until the caller sets it: the tables do not have it.
  int64_t vocabSize = 0;
  std::vector<int64_t> buckets = {}; ///< one sequence, ascending; or empty
  PackingCosts costs = {};           ///< of the last bucket, in FLOPs
  /// Sequences per row of data. 2 for pairs of answers (all chosen ones of a
  /// micro-batch before all rejected ones) and for answers followed by
  /// mismatched ones (Data/KtoKlPairs.h). Set by the caller, as
  /// vocabSize.
  int64_t sides = 1;
  /// Rows have one answer each, desirable or not. Also set by the caller.
  bool isUnpaired = false;

  /// Rows in the file per row of data.
  int64_t sidesInFile() const { return isUnpaired ? 1 : sides; }

  static StatusOr<CompiledVariants> of(const LoadedModule &module);
};

} // namespace qlora

#endif // QLORA_RUNTIME_MODULE_COMPILEDVARIANTS_H
