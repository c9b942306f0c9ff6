// SPDX-License-Identifier: MIT

// The rows of a dataset: some rows of one or several files.

#ifndef QLORA_RUNTIME_DATA_DATASETROWS_H
#define QLORA_RUNTIME_DATA_DATASETROWS_H

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/Data/TokenStore.h"

namespace qlora {

/// The files of a dataset, and the selected rows. A preference pair is one row
/// here, but `sides` rows in the file.
struct DatasetRows {
  using Stores = std::vector<TokenStore>;

  /// Shared by the training and the validation dataset.
  std::shared_ptr<const Stores> stores;
  /// The selected rows, numbered through all files. Empty: each row once.
  std::vector<uint32_t> chosen = {};
  int64_t sides = 1;
  /// Whether half of the sequences have mismatched answers (KtoKlPairs.h).
  bool hasMismatched = false;
  bool hasOneSegment = false; ///< each row is one segment

  int64_t count() const;
  /// Tokens of a row's longest sequence (side). tokens(), labels() and answer()
  /// are sums over all sides.
  int64_t length(int64_t row) const;
  int64_t tokens(int64_t row) const;
  int64_t labels(int64_t row) const;
  int64_t answer(int64_t row) const;
  int64_t sumOfSides(int64_t row,
                     int64_t (TokenStore::*of)(int64_t) const) const;
  /// Whether the data is a token file, whose order is not changed.
  bool isWhole() const { return stores->front().isWhole(); }
  /// Returns the file of a row, and the number of its first side in the file.
  std::pair<const TokenStore *, int64_t> find(int64_t row) const;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_DATASETROWS_H
