// SPDX-License-Identifier: MIT

// The shapes that a module was compiled for, which data are dealt to.

#ifndef QLORA_RUNTIME_MODULE_COMPILEDVARIANTS_H
#define QLORA_RUNTIME_MODULE_COMPILEDVARIANTS_H

#include <cstdint>
#include <vector>

#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// What a step costs, in any one unit (FLOPs).
struct PackingCosts {
  double token = 1; ///< of each token of a bucket, padding too
  double pair = 0;  ///< of a query and a key of one row that it sees

  /// Of a row's own tokens and pairs; causal.
  double ofRow(int64_t length) const {
    const double tokens = static_cast<double>(length);
    return token * tokens + pair * tokens * (tokens + 1) / 2;
  }
};

/// The shapes that a module was compiled for: rows of several lengths, and
/// token buckets, which are lines of one row. Where rows come one by one, each
/// is the other too. kDataLoss when an entry of a variant is missing.
struct CompiledVariants {
  int64_t batch = 0;
  std::vector<int64_t> lengths; ///< of `batch` rows, ascending
  /// Token ids; 0 until it is known, since the tables do not have it.
  int64_t vocabSize = 0;
  std::vector<int64_t> buckets = {}; ///< of one row, ascending; may be empty
  PackingCosts costs = {};           ///< of the last bucket, in FLOPs
  /// Lines of a row of data: 2 for pairs of answers, all chosen ones of a
  /// micro-batch before all rejected ones, and for answers with mismatched ones
  /// behind (Data/MismatchedAnswers.h). Not in the tables either.
  int64_t sides = 1;
  /// Rows have one answer each, desirable or not. Nor is this there.
  bool isUnpaired = false;

  /// Rows of a file for each row of data.
  int64_t sidesInFile() const { return isUnpaired ? 1 : sides; }

  static StatusOr<CompiledVariants> of(const LoadedModule &module);
};

} // namespace qlora

#endif // QLORA_RUNTIME_MODULE_COMPILEDVARIANTS_H
