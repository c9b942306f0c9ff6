// SPDX-License-Identifier: MIT

// Combines prompts with the answers of the preceding rows.

#include "runtime/Data/KtoKlPairs.h"

#include <algorithm>
#include <numeric>

namespace qlora {

static int64_t tokensOf(const MicroBatch &batch, int64_t line) {
  const auto begin = batch.segments.begin() + line * batch.length;
  return std::find(begin, begin + batch.length, 0) - begin;
}

/// Returns the tokens before a sequence's answer; all tokens if it has none.
static int64_t promptOf(const MicroBatch &batch, int64_t line) {
  const auto begin = batch.targets.begin() + line * batch.length;
  const auto first =
      std::find_if(begin, begin + batch.length,
                   [](int32_t target) { return target != kNoLabel; });
  return std::min(first - begin + 1, tokensOf(batch, line));
}

void placeKtoKlPairs(int64_t rows, MicroBatch &batch) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t other = (row + rows - 1) % rows;
    const int64_t prompt = promptOf(batch, row),
                  skipped = promptOf(batch, other);
    const int64_t answer =
        std::min(tokensOf(batch, other) - skipped, batch.length - prompt);
    const int64_t to = (batch.batch / 2 + row) * batch.length;
    const int64_t own = row * batch.length;
    const int64_t from = other * batch.length + skipped;
    std::copy_n(batch.ids.begin() + own, prompt, batch.ids.begin() + to);
    std::copy_n(batch.ids.begin() + from, answer,
                batch.ids.begin() + to + prompt);
    // The target at index i is the label of token i + 1.
    std::copy_n(batch.targets.begin() + from - 1, answer,
                batch.targets.begin() + to + prompt - 1);
    const auto positions = batch.positions.begin() + to;
    std::iota(positions, positions + prompt + answer, 0);
    std::fill_n(batch.segments.begin() + to, prompt + answer, 1);
  }
}

} // namespace qlora
