// SPDX-License-Identifier: MIT

// A captured graph cannot leave work out, but one for fewer labels can be
// another graph: the share of labelled rows, in quarters. Ranks that add up in
// an entry are told the same labelled_rows, and so have the same share.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_LABELSHARE_H
#define QLORA_RUNTIME_DEVICE_CUDA_LABELSHARE_H

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "runtime/ABI/module.h"

namespace qlora {

inline constexpr size_t kLabelShares = 4;

struct LabelShare {
  size_t index = kLabelShares - 1;  ///< among the graphs of an entry
  int64_t labelledRows = INT64_MAX; ///< that it has room for

  /// The smallest share with room for the labels of this micro-batch. An
  /// entry without a micro-batch has one share.
  static LabelShare of(const qlora_entry &entry,
                       const qlora_step_block &step) {
    constexpr auto kShares = static_cast<int64_t>(kLabelShares);
    const int64_t rows = entry.batch * entry.length;
    if (rows == 0)
      return {};
    const int64_t labels =
        std::min(static_cast<int64_t>(step.labelled_rows), rows);
    const int64_t share =
        std::max<int64_t>(1, (labels * kShares + rows - 1) / rows);
    return {static_cast<size_t>(share - 1),
            (rows * share + kShares - 1) / kShares};
  }
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_LABELSHARE_H
