// SPDX-License-Identifier: MIT

// Selects the rows of a dataset from several files: weights and validation
// split. The selection depends only on the numbers of rows and the seed.
//
//   validation   K rows of all N rows, drawn with the seed; for a fraction s,
//                K = ceil(s N), as in scikit-learn
//   training     the other rows; with a weight w each occurs floor(w) times,
//                and round((w - floor(w)) n) of a file's n rows once more

#ifndef QLORA_RUNTIME_DATA_ROWSELECTION_H
#define QLORA_RUNTIME_DATA_ROWSELECTION_H

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"

namespace qlora {

/// A file of a dataset, with its weight.
struct RowSource {
  std::string name; ///< name for errors
  int64_t rows = 0;
  double weight = 1;
};

/// Row numbers, counted through all files in their order.
struct RowSelection {
  std::vector<uint32_t> training, validation;
};

/// Refuses more rows than 32-bit numbers count, weights included. Names the
/// first file that is too much.
Status checkRowNumbers(std::span<const RowSource> sources);

/// Selects rows of sources that checkRowNumbers() accepts. `validationSize`: a
/// fraction if below 1, else a number of rows. Fails if either selection would
/// be empty.
StatusOr<RowSelection> selectRows(std::span<const RowSource> sources,
                                  double validationSize, uint64_t seed);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_ROWSELECTION_H
