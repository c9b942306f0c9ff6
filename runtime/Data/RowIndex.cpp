// SPDX-License-Identifier: MIT

// Lays out the index of rows in a block of memory.

#include "runtime/Data/RowIndex.h"

#include <algorithm>
#include <bit>

namespace qlora {

void RowIndex::layOut() {
  const auto bits = static_cast<unsigned>(
      std::bit_width(static_cast<uint64_t>(shape.longest)));
  lengths.bits = shape.isWhole ? 0 : bits;
  labelCounts.bits = bits;
  answers.bits = shape.isJudged ? bits + 1 : 0;
  size = shape.isWhole ? startOf(0) : startOf(shape.rows) + sizeof(int64_t);
  for (PackedNumbers *numbers : {&lengths, &labelCounts, &answers}) {
    if (numbers->bits == 0)
      continue;
    numbers->bytes = start ? start + size : nullptr;
    const uint64_t used = static_cast<uint64_t>(shape.rows) * numbers->bits;
    size += ((used + 63) / 64 + 1) * sizeof(uint64_t);
  }
}

void RowIndex::place(std::shared_ptr<const HostMemory> given, uint64_t offset) {
  memory = std::move(given);
  start = memory->bytes().data() + offset;
  layOut();
}

int64_t RowIndex::begin(int64_t row) const {
  if (shape.isWhole)
    return row * shape.longest;
  int64_t begin;
  std::memcpy(&begin, start + startOf(row), sizeof begin);
  for (int64_t other = row / kRowsPerStart * kRowsPerStart; other < row;
       ++other)
    begin += lengths[other];
  return begin;
}

void RowIndex::addLength(int64_t row, int64_t begin, int64_t length) {
  if (row % kRowsPerStart == 0)
    std::memcpy(start + startOf(row), &begin, sizeof begin);
  lengths.add(row, length);
}

void RowIndex::setDigest(std::string_view digest) {
  std::ranges::copy(digest, reinterpret_cast<char *>(start));
}

} // namespace qlora
