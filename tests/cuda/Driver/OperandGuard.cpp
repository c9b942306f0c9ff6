// SPDX-License-Identifier: MIT

// Caches copies by size and reuses them, because a new mapping per launch would
// be slow.

#include "tests/cuda/Driver/OperandGuard.h"

#include "tests/cuda/Driver/Settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

namespace qlora::platform {

/// Alignment in bytes for vector loads. An operand ends less than this many
/// bytes before the guard.
static constexpr size_t kAlignment = 16;

static std::multimap<size_t, const Allocation *> &freeCopies() {
  static std::multimap<size_t, const Allocation *> copies;
  return copies;
}

static const Allocation *takeCopy(size_t bytes, int device) {
  const auto found = freeCopies().find(bytes);
  if (found == freeCopies().end())
    return allocateMemory(bytes, device, kAlignment);
  const Allocation *copy = found->second;
  freeCopies().erase(found);
  return copy;
}

void OperandGuard::addRegions(std::vector<OperandUse> uses) {
  std::erase_if(uses, [](const OperandUse &use) { return use.bytes == 0; });
  std::sort(uses.begin(), uses.end(),
            [](const OperandUse &a, const OperandUse &b) {
              return a.begin != b.begin ? a.begin < b.begin
                                        : a.bytes < b.bytes;
            });
  for (const OperandUse &use : uses) {
    Region *last = regions.empty() ? nullptr : &regions.back();
    if (!last || use.begin >= last->begin + last->bytes) {
      regions.push_back({use.begin, use.bytes, use.access, use.elementBytes,
                         nullptr});
      continue;
    }
    last->bytes = std::max(last->bytes,
                           size_t(use.begin + use.bytes - last->begin));
    last->access |= use.access;
    last->elementBytes = std::min(last->elementBytes, use.elementBytes);
  }
}

/// Fills a region's copy. Bytes that the kernel only writes start as NaN.
void OperandGuard::fill(const Region &region) const {
  if (region.access & QLORA_READ)
    std::memcpy(region.copy->base, region.begin, region.bytes);
  else
    std::memset(region.copy->base, 0xff, region.bytes);
}

OperandGuard::OperandGuard(const char *symbol, qlora_cuda_args &args,
                           int device, std::string &wrong) {
  const ModuleOperands *operands = ModuleOperands::get();
  if (!operands)
    return;
  const std::vector<OperandUse> uses = operands->find(symbol, args);
  if (uses.empty()) {
    wrong = "no launch of the module has these arguments";
    return;
  }
  countEvent("guarded launches");
  addRegions(uses);
  for (Region &region : regions) {
    region.copy = takeCopy(region.bytes, device);
    fill(region);
  }
  for (void *&buffer : args.buffers) {
    auto *const address = static_cast<char *>(buffer);
    for (const Region &region : regions)
      if (address >= region.begin && address < region.begin + region.bytes)
        buffer = region.copy->base + (address - region.begin);
  }
}

/// Copies the elements that the kernel wrote. Gaps between the rows of a
/// strided output keep their old contents, because other kernels write there.
static void copyWritten(char *to, const char *from, size_t bytes,
                        size_t elementBytes) {
  static constexpr unsigned char kFresh[4] = {0xff, 0xff, 0xff, 0xff};
  for (size_t i = 0; i < bytes; i += elementBytes)
    if (std::memcmp(from + i, kFresh, elementBytes) != 0)
      std::memcpy(to + i, from + i, elementBytes);
}

std::string OperandGuard::finish() {
  std::string wrong;
  for (const Region &region : regions) {
    if (!isIntact(*region.copy))
      wrong = fmt::format("wrote outside of an operand of {} bytes",
                          region.bytes);
    if (region.access == QLORA_READ_WRITE)
      std::memcpy(region.begin, region.copy->base, region.bytes);
    else if (region.access == QLORA_WRITE)
      copyWritten(region.begin, region.copy->base, region.bytes,
                  region.elementBytes);
    else if (std::memcmp(region.begin, region.copy->base, region.bytes) != 0)
      wrong = fmt::format("wrote to an operand of {} bytes that it only reads",
                          region.bytes);
    freeCopies().emplace(region.bytes, region.copy);
  }
  return wrong;
}

} // namespace qlora::platform
