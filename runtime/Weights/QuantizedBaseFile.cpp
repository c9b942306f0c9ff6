// SPDX-License-Identifier: MIT

// Base files: checksums, trailer, verification, the writer, and the folder.

#include "runtime/Weights/QuantizedBaseFile.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/Base/ContentHash.h"
#include "runtime/Base/Exceptions.h"
#include "runtime/Base/StopSignal.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Kernels/Cpu/Parallel.h"

namespace qlora {

//===----------------------------------------------------------------------===//
// The format
//===----------------------------------------------------------------------===//

namespace {

constexpr uint64_t kPage = 4096;

struct QuantizedBaseHeader {
  std::array<char, 8> magic = {'Q', 'L', 'O', 'R', 'A', 'B', 'A', 'S'};
  uint64_t version = 2;
  uint64_t arenaBytes = 0;
  uint64_t chunkBytes = kBaseChunk;
  std::array<char, ContentHash::kDigits> key = {};
};
static_assert(sizeof(QuantizedBaseHeader) == 64, "part of the format");

} // namespace

static uint64_t chunksOf(uint64_t arenaBytes) {
  return (arenaBytes + kBaseChunk - 1) / kBaseChunk;
}

uint64_t baseTrailerOffset(uint64_t arenaBytes) {
  return (arenaBytes + kPage - 1) / kPage * kPage;
}

uint64_t baseFileBytes(uint64_t arenaBytes) {
  return baseTrailerOffset(arenaBytes) + sizeof(QuantizedBaseHeader) +
         (chunksOf(arenaBytes) + 1) * sizeof(uint64_t);
}

static uint64_t checksumOf(std::span<const uint8_t> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

/// Returns the bytes that follow the arena. `key` is a ContentHash.
static std::vector<uint8_t> trailerOf(std::string_view key, uint64_t arenaBytes,
                                      std::span<const uint64_t> checksums) {
  QuantizedBaseHeader head;
  head.arenaBytes = arenaBytes;
  key.copy(head.key.data(), head.key.size());
  std::vector<uint8_t> trailer(sizeof head + checksums.size_bytes());
  std::memcpy(trailer.data(), &head, sizeof head);
  if (!checksums.empty())
    std::memcpy(trailer.data() + sizeof head, checksums.data(),
                checksums.size_bytes());
  const uint64_t own = checksumOf(trailer);
  const auto *bytes = reinterpret_cast<const uint8_t *>(&own);
  trailer.insert(trailer.end(), bytes, bytes + sizeof own);
  return trailer;
}

/// Returns a file's checksums, after comparing its trailer with this base.
static StatusOr<std::vector<uint64_t>>
readChecksums(const FileDescriptor &file, std::string_view key,
              uint64_t arenaBytes) {
  struct stat info {};
  const uint64_t wanted = baseFileBytes(arenaBytes);
  if (fstat(file.get(), &info) != 0 ||
      static_cast<uint64_t>(info.st_size) != wanted)
    return Status::dataLoss("it has {} bytes instead of {}", info.st_size,
                            wanted);
  const uint64_t offset = baseTrailerOffset(arenaBytes);
  std::vector<uint8_t> trailer(wanted - offset);
  QLORA_RETURN_IF_ERROR(file.readAt(offset, trailer));
  std::vector<uint64_t> checksums(chunksOf(arenaBytes));
  if (!checksums.empty())
    std::memcpy(checksums.data(), trailer.data() + sizeof(QuantizedBaseHeader),
                checksums.size() * sizeof(uint64_t));
  // This comparison includes magic, version, sizes and key.
  if (trailer != trailerOf(key, arenaBytes, checksums))
    return Status::dataLoss("its end is damaged or belongs to another base");
  return checksums;
}

/// Reads an open file completely, on all threads of this process. Returns
/// kDataLoss with the reason if a checksum, the key or the size differs.
static Status verify(const FileDescriptor &file, std::string_view key,
                     uint64_t arenaBytes) {
  QLORA_ASSIGN_OR_RETURN(const std::vector<uint64_t> checksums,
                         readChecksums(file, key, arenaBytes));
  const auto chunks = static_cast<int64_t>(checksums.size());
  std::atomic<int64_t> damaged = -1;
  // Read instead of mapping: on a failing disk, a mapped page raises SIGBUS.
  parallelRanges(chunks, 1, [&](int64_t begin, int64_t end) {
    std::vector<uint8_t> buffer(std::min(kBaseChunk, arenaBytes));
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const uint64_t first = static_cast<uint64_t>(chunk) * kBaseChunk;
      const auto part =
          std::span(buffer).first(std::min(kBaseChunk, arenaBytes - first));
      if (!file.readAt(first, part).isOk() ||
          checksumOf(part) != checksums[static_cast<size_t>(chunk)])
        damaged = chunk;
    }
  });
  if (damaged >= 0)
    return Status::dataLoss("the {} bytes from {} on are damaged", kBaseChunk,
                            static_cast<uint64_t>(damaged) * kBaseChunk);
  return Status::ok();
}

//===----------------------------------------------------------------------===//
// Writing
//===----------------------------------------------------------------------===//

StatusOr<std::unique_ptr<QuantizedBaseWriter>>
QuantizedBaseWriter::start(const std::string &path, const std::string &key,
                           std::span<const uint8_t> arena) {
  QLORA_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  // If the file system cannot reserve space, writing fails on a full disk.
  QLORA_RETURN_IF_ERROR(file.reserve(baseFileBytes(arena.size()),
                                     AtomicFile::Reserve::kWhereItCan));
  std::unique_ptr<QuantizedBaseWriter> writer(
      new QuantizedBaseWriter(std::move(file), key, arena));
  QuantizedBaseWriter *self = writer.get();
  self->thread = std::thread([self] { self->writeInBackground(); });
  return writer;
}

void QuantizedBaseWriter::writeInBackground() {
  // On Linux this sets the priority of this thread only.
  setpriority(PRIO_PROCESS, 0, 19);
  status = endExceptions("the thread that writes it",
                         [this] { return writeRest(shouldStop); });
}

Status QuantizedBaseWriter::writeRest(const std::atomic<bool> &stop) {
  while (checksums.size() < chunksOf(arena.size())) {
    if (stop || stopSignal())
      return Status::ok();
    QLORA_RETURN_IF_ERROR(writeChunk());
  }
  return publish();
}

Status QuantizedBaseWriter::writeChunk() {
  const uint64_t first = checksums.size() * kBaseChunk;
  const auto chunk =
      arena.subspan(first, std::min(kBaseChunk, arena.size() - first));
  QLORA_RETURN_IF_ERROR(file.writeAt(first, chunk));
  checksums.push_back(checksumOf(chunk));
  return Status::ok();
}

Status QuantizedBaseWriter::publish() {
  QLORA_RETURN_IF_ERROR(file.writeAt(baseTrailerOffset(arena.size()),
                                     trailerOf(key, arena.size(), checksums)));
  // No flush is needed: readers compare checksums.
  QLORA_RETURN_IF_ERROR(file.commit(AtomicFile::Flush::kNo));
  isWhole = true;
  return Status::ok();
}

Status QuantizedBaseWriter::finish() {
  shouldStop = true;
  if (thread.joinable())
    thread.join();
  if (status.isOk() && !isWhole)
    status = writeRest(/*stop=*/std::atomic<bool>(false));
  return status;
}

QuantizedBaseWriter::~QuantizedBaseWriter() {
  shouldStop = true;
  if (thread.joinable())
    thread.join();
}

//===----------------------------------------------------------------------===//
// The folder
//===----------------------------------------------------------------------===//

namespace fs = std::filesystem;

StatusOr<FileDescriptor> QuantizedBaseCache::open(const std::string &key,
                                                  uint64_t arenaBytes) const {
  const std::string path = fileOf(key);
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.isOpen() && errno == ENOENT)
    return file;
  if (!file.isOpen())
    return Status::dataLoss("cannot open '{}': {}", path, std::strerror(errno));
  Status sound = verify(file, key, arenaBytes);
  if (!sound.isOk())
    return sound.withContext(fmt::format("'{}'", path));
  // Mark the file as used. Ignore errors, for example in a read-only folder.
  (void)futimens(file.get(), nullptr);
  return file;
}

Status QuantizedBaseCache::makeRoom(uint64_t bytes) const {
  if (bytes > limit)
    return Status::error(StatusCode::kResourceExhausted,
                         "it has {} bytes, more than --base-cache-limit {}",
                         bytes, limit);
  keepRecentFiles(folder, ".base", limit, bytes);
  return Status::ok();
}

StatusOr<std::unique_ptr<QuantizedBaseWriter>>
QuantizedBaseCache::write(const std::string &key,
                          std::span<const uint8_t> arena,
                          uint64_t together) const {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    return Status::error(StatusCode::kResourceExhausted,
                         "cannot create '{}': {}", folder, error.message());
  QLORA_RETURN_IF_ERROR(makeRoom(together * baseFileBytes(arena.size())));
  return QuantizedBaseWriter::start(fileOf(key), key, arena);
}

} // namespace qlora
