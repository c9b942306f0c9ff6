// SPDX-License-Identifier: MIT

// Checksums, the trailer, and the check of both.

#include "runtime/Weights/BaseFile.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "runtime/Base/ContentHash.h"

namespace qlora {

namespace {

constexpr uint64_t kPage = 4096;

struct BaseHead {
  std::array<char, 8> magic = {'Q', 'L', 'O', 'R', 'A', 'B', 'A', 'S'};
  uint64_t version = 2;
  uint64_t arenaBytes = 0;
  uint64_t chunkBytes = kBaseChunk;
  std::array<char, ContentHash::kDigits> key = {};
};
static_assert(sizeof(BaseHead) == 64, "part of the format");

} // namespace

uint64_t baseTrailerOffset(uint64_t arenaBytes) {
  return (arenaBytes + kPage - 1) / kPage * kPage;
}

uint64_t baseFileBytes(uint64_t arenaBytes) {
  return baseTrailerOffset(arenaBytes) + sizeof(BaseHead) +
         (baseChunks(arenaBytes) + 1) * sizeof(uint64_t);
}

uint64_t baseChecksum(std::span<const uint8_t> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::vector<uint8_t> baseTrailer(std::string_view key, uint64_t arenaBytes,
                                 std::span<const uint64_t> checksums) {
  BaseHead head;
  head.arenaBytes = arenaBytes;
  key.copy(head.key.data(), head.key.size());
  std::vector<uint8_t> trailer(sizeof head + checksums.size_bytes());
  std::memcpy(trailer.data(), &head, sizeof head);
  if (!checksums.empty())
    std::memcpy(trailer.data() + sizeof head, checksums.data(),
                checksums.size_bytes());
  const uint64_t own = baseChecksum(trailer);
  const auto *bytes = reinterpret_cast<const uint8_t *>(&own);
  trailer.insert(trailer.end(), bytes, bytes + sizeof own);
  return trailer;
}

/// False where the file ends before, or the system cannot read it.
static bool readAt(int descriptor, uint64_t offset, std::span<uint8_t> out) {
  while (!out.empty()) {
    const ssize_t got =
        pread(descriptor, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      return false;
    out = out.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  return true;
}

/// The checksums of a file whose trailer is sound and is of this base.
static StatusOr<std::vector<uint64_t>>
readChecksums(int descriptor, std::string_view key, uint64_t arenaBytes) {
  struct stat info {};
  const uint64_t wanted = baseFileBytes(arenaBytes);
  if (fstat(descriptor, &info) != 0 ||
      static_cast<uint64_t>(info.st_size) != wanted)
    return Status::error(StatusCode::kDataLoss, "it has {} bytes instead of {}",
                         info.st_size, wanted);
  const uint64_t offset = baseTrailerOffset(arenaBytes);
  std::vector<uint8_t> trailer(wanted - offset);
  if (!readAt(descriptor, offset, trailer))
    return Status::error(StatusCode::kDataLoss, "it cannot be read");
  std::vector<uint64_t> checksums(baseChunks(arenaBytes));
  if (!checksums.empty())
    std::memcpy(checksums.data(), trailer.data() + sizeof(BaseHead),
                checksums.size() * sizeof(uint64_t));
  // Also says that magic, version, sizes and key are the ones wanted.
  if (trailer != baseTrailer(key, arenaBytes, checksums))
    return Status::error(StatusCode::kDataLoss,
                         "its end is damaged or of another base");
  return checksums;
}

Status verifyBase(int descriptor, std::string_view key, uint64_t arenaBytes) {
  QLORA_ASSIGN_OR_RETURN(const std::vector<uint64_t> checksums,
                         readChecksums(descriptor, key, arenaBytes));
  const auto chunks = static_cast<int64_t>(checksums.size());
  std::atomic<int64_t> damaged = -1;
  // By read() and not through a mapping: a disk that fails is an error here,
  // not a signal.
#pragma omp parallel
  {
    std::vector<uint8_t> buffer(std::min(kBaseChunk, arenaBytes));
#pragma omp for schedule(static)
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const uint64_t first = static_cast<uint64_t>(chunk) * kBaseChunk;
      const auto part =
          std::span(buffer).first(std::min(kBaseChunk, arenaBytes - first));
      if (!readAt(descriptor, first, part) ||
          baseChecksum(part) != checksums[static_cast<size_t>(chunk)])
        damaged = chunk;
    }
  }
  if (damaged >= 0)
    return Status::error(StatusCode::kDataLoss,
                         "the {} bytes from {} on are damaged", kBaseChunk,
                         static_cast<uint64_t>(damaged) * kBaseChunk);
  return Status::ok();
}

} // namespace qlora
