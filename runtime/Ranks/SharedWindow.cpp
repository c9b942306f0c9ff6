// SPDX-License-Identifier: MIT

// Maps the slots in shared memory and sums over them.

#include "runtime/Ranks/SharedWindow.h"

#include <algorithm>

#include "runtime/Kernels/Cpu/Convert.h"

namespace qlora {

uint64_t SharedWindow::bytesFor(int ranks) {
  return kCapacity * kSets * static_cast<uint64_t>(ranks);
}

void addElements(qlora_dtype dtype, uint8_t *sum, const uint8_t *addend,
                 size_t bytes) {
  const size_t count = bytes / (dtypeBits(dtype) / 8);
  if (dtype != QLORA_DTYPE_I32)
    return addRun(dtype, addend, dtype, sum, static_cast<int64_t>(count));
  // Integers are added unsigned, since signed overflow is undefined.
  auto *to = reinterpret_cast<uint32_t *>(sum);
  const auto *from = reinterpret_cast<const uint32_t *>(addend);
  for (size_t i = 0; i < count; ++i)
    to[i] += from[i];
}

StatusOr<FileDescriptor> SharedWindow::create(int ranks) {
  QLORA_ASSIGN_OR_RETURN(
      int fd, HostMemory::createShared("qlora-sums", bytesFor(ranks)));
  return FileDescriptor(fd);
}

StatusOr<SharedWindow> SharedWindow::map(const FileDescriptor &descriptor,
                                         int rank, int ranks) {
  QLORA_ASSIGN_OR_RETURN(HostMemory memory,
                         HostMemory::shared(descriptor.get(), bytesFor(ranks)));
  return SharedWindow(std::move(memory), rank, ranks);
}

uint8_t *SharedWindow::slot(int ofRank) const {
  return memory.bytes().data() +
         static_cast<size_t>(set * ranks + ofRank) * kCapacity;
}

void SharedWindow::write(std::span<const uint8_t> data) {
  std::copy(data.begin(), data.end(), slot(rank));
}

void SharedWindow::sumPart(qlora_dtype dtype, size_t begin, size_t end) {
  for (int other = 1; other < ranks; ++other)
    addElements(dtype, slot(0) + begin, slot(other) + begin, end - begin);
}

void SharedWindow::read(int ofRank, std::span<uint8_t> data) const {
  std::copy_n(slot(ofRank), data.size(), data.begin());
}

} // namespace qlora
