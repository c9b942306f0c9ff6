// SPDX-License-Identifier: MIT

// Which rows of several files a dataset has: weights and the validation part,
// from the numbers of rows alone, the same for the same seed.
//
//   validation   K rows of all files together, drawn by the seed: K of N, or
//                the share s as ceil(s N), as scikit-learn counts
//   training     the others; with a weight w each comes floor(w) times, and
//                a drawn part of them, rounded, once more

#ifndef QLORA_RUNTIME_DATA_ROWSELECTION_H
#define QLORA_RUNTIME_DATA_ROWSELECTION_H

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"

namespace qlora {

/// A file of a mix.
struct RowSource {
  std::string name; ///< for errors
  int64_t rows = 0;
  double weight = 1;
};

/// Rows as numbers that go on from one file to the next, in their order.
struct RowSelection {
  std::vector<int64_t> training, validation;
};

/// `validationSize`: below 1 a share, else a number of rows. A part that would
/// be empty is refused.
StatusOr<RowSelection> selectRows(std::span<const RowSource> sources,
                                  double validationSize, uint64_t seed);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_ROWSELECTION_H
