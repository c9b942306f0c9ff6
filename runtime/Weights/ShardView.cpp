// SPDX-License-Identifier: MIT

// Builds the sections of a shard, and copies ranges of a shard.

#include "runtime/Weights/ShardView.h"

#include <algorithm>

namespace qlora {

void ShardView::addRows(uint64_t at, const uint8_t *whole, uint64_t step,
                        uint64_t count, std::vector<ShardRange> runs) {
  uint64_t row = 0;
  for (const ShardRange &run : runs)
    row += run.bytes;
  if (row != 0)
    sections.push_back({at, row * count, row, whole, step, std::move(runs)});
}

void ShardView::Section::copy(uint64_t at, std::span<uint8_t> out) const {
  uint64_t number = at / row, within = at % row; // row, byte in it
  size_t next = 0;
  for (; within >= runs[next].bytes; ++next)
    within -= runs[next].bytes;
  while (!out.empty()) {
    const ShardRange &run = runs[next];
    const uint64_t count = std::min<uint64_t>(run.bytes - within, out.size());
    std::copy_n(whole + number * step + run.from + within, count, out.data());
    out = out.subspan(count);
    within = 0;
    if (++next == runs.size()) {
      next = 0;
      ++number;
    }
  }
}

void ShardView::copy(uint64_t at, std::span<uint8_t> out) const {
  for (const Section &section : sections) {
    const uint64_t begin = std::max(at, section.begin);
    const uint64_t end =
        std::min(at + out.size(), section.begin + section.bytes);
    if (begin < end)
      section.copy(begin - section.begin, out.subspan(begin - at, end - begin));
  }
}

} // namespace qlora
