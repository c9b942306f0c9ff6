// SPDX-License-Identifier: MIT

// Finds the written ranges of shared memory in units of a cache line.

#include "tests/cuda/Driver/SharedMemory.h"

#include <algorithm>
#include <cstring>

namespace qlora::platform {

static constexpr int kFreshShared = 0xff;
static constexpr size_t kPieceBytes = 64;
static constexpr int kBlocksToSee = 16;

void SharedMemory::beginLaunch(const qlora_host_image &ofImage,
                               const qlora_host_kernel &kernel, size_t bytes) {
  image = &ofImage;
  written = &known[&kernel];
  dynamicBytes.resize(bytes);
}

void SharedMemory::beginBlock() {
  std::memset(dynamicBytes.data(), kFreshShared, dynamicBytes.size());
  if (written->blocksSeen < kBlocksToSee) {
    std::memset(image->sharedBegin, kFreshShared,
                size_t(image->sharedEnd - image->sharedBegin));
    return;
  }
  for (const Range &range : written->ranges)
    std::memset(range.begin, kFreshShared, range.bytes);
}

void SharedMemory::endBlock() {
  if (written->blocksSeen >= kBlocksToSee)
    return;
  ++written->blocksSeen;
  findWritten();
}

/// Records the cache lines whose contents differ from the initial pattern.
void SharedMemory::findWritten() {
  std::vector<char> isWritten(
      size_t(image->sharedEnd - image->sharedBegin) / kPieceBytes + 1);
  const auto piece = [&](const char *at) {
    return size_t(at - image->sharedBegin) / kPieceBytes;
  };
  for (const Range &range : written->ranges)
    std::fill(&isWritten[piece(range.begin)],
              &isWritten[piece(range.begin + range.bytes - 1)] + 1, 1);
  static const std::vector<char> fresh(kPieceBytes, char(kFreshShared));
  for (char *at = image->sharedBegin; at < image->sharedEnd;
       at += kPieceBytes) {
    const size_t bytes =
        std::min(kPieceBytes, size_t(image->sharedEnd - at));
    isWritten[piece(at)] |= std::memcmp(at, fresh.data(), bytes) != 0;
  }
  written->ranges.clear();
  for (size_t i = 0; i < isWritten.size(); ++i) {
    if (!isWritten[i])
      continue;
    char *begin = image->sharedBegin + i * kPieceBytes;
    const size_t bytes =
        std::min(kPieceBytes, size_t(image->sharedEnd - begin));
    if (i && isWritten[i - 1])
      written->ranges.back().bytes += bytes;
    else
      written->ranges.push_back({begin, bytes});
  }
}

} // namespace qlora::platform
