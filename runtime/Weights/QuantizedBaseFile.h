// SPDX-License-Identifier: MIT

// The cache of quantized bases: a folder of files KEY.base (QuantizedBase.h
// defines the key), whose pages all runs and ranks of a machine share. Any file
// may be deleted at any time; runs that have mapped it can still use it.
//
// A file has the bytes of the FROZEN arena, so that it can be mapped as the
// arena, and then a trailer that shows whether the file is complete.
//
//   0             the arena
//   next page     head: magic, version, bytes of the arena and of a chunk, key
//                 checksums u64, one for each chunk of the arena
//                 checksum u64 of the head and the checksums
//
// The trailer is written last, so an unfinished file has none. Integers have
// the machine's byte order. With another byte order, the version check fails.
//
// The checksum is XXH3. It detects damage, but not tampering.

#ifndef QLORA_RUNTIME_WEIGHTS_QUANTIZEDBASEFILE_H
#define QLORA_RUNTIME_WEIGHTS_QUANTIZEDBASEFILE_H

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "runtime/Base/AtomicFile.h"
#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Bytes per checksum, which is also the unit of reading and writing.
inline constexpr uint64_t kBaseChunk = uint64_t{4} << 20;

uint64_t baseFileBytes(uint64_t arenaBytes);
/// Returns the offset of the trailer, which follows the arena.
uint64_t baseTrailerOffset(uint64_t arenaBytes);

/// Writes a base file while the run that quantized the base trains. A thread of
/// the lowest priority copies the arena, which is read-only by then, to an
/// AtomicFile. So training waits only for the reservation of disk space, and
/// readers find a complete file or none. If two runs write the same base, their
/// bytes are equal, and the last rename wins. A killed run leaves a *.part.*
/// file, which QuantizedBaseCache removes a day later.
///
/// One thread must create, finish and destroy it.
class QuantizedBaseWriter {
public:
  /// Reserves disk space and starts the thread. `arena` must outlive the
  /// writer. kResourceExhausted if the disk is too full; no file is left then.
  static StatusOr<std::unique_ptr<QuantizedBaseWriter>>
  start(const std::string &path, const std::string &key,
        std::span<const uint8_t> arena);

  /// Writes the remaining chunks on the calling thread. After a stop signal
  /// (StopSignal.h), stops writing and removes the file.
  Status finish();

  /// Without finish(): stops the thread and removes an incomplete file.
  ~QuantizedBaseWriter();

private:
  QuantizedBaseWriter(AtomicFile file, std::string key,
                      std::span<const uint8_t> arena)
      : file(std::move(file)), key(std::move(key)), arena(arena) {}

  void writeInBackground();
  Status writeRest(const std::atomic<bool> &stop);
  Status writeChunk();
  Status publish();

  AtomicFile file;
  const std::string key;
  const std::span<const uint8_t> arena;
  std::vector<uint64_t> checksums; ///< checksums of the written chunks
  Status status;
  bool isWhole = false; ///< the complete file is at its path
  std::atomic<bool> shouldStop = false;
  std::thread thread;
};

/// The folder of bases. Before a file is used, it is read completely and its
/// checksums are compared, which also loads its pages for the first step. A
/// damaged base is quantized again. Before a base is added, the least recently
/// used bases are removed (keepRecentFiles in UserFiles.h).
class QuantizedBaseCache {
public:
  /// `limit`: maximum bytes of all files. Files used in the last hour stay even
  /// if the folder exceeds the limit.
  QuantizedBaseCache(std::string folder, uint64_t limit)
      : folder(std::move(folder)), limit(limit) {}

  std::string fileOf(const std::string &key) const {
    return folder + "/" + key + ".base";
  }

  /// Opens the file of a base for FrozenArena::filled() and marks it as used.
  /// Returns a closed descriptor if it is missing, kDataLoss if it is damaged.
  StatusOr<FileDescriptor> open(const std::string &key,
                                uint64_t arenaBytes) const;

  /// Deletes old bases and starts to write this base; replaces a damaged file.
  /// Returns kResourceExhausted if the limit or the disk has no space, or if
  /// the folder cannot be created. `together`: number of ranks that write a
  /// base of this size at the same time and need space.
  StatusOr<std::unique_ptr<QuantizedBaseWriter>>
  write(const std::string &key, std::span<const uint8_t> arena,
        uint64_t together = 1) const;

private:
  Status makeRoom(uint64_t bytes) const;

  std::string folder;
  uint64_t limit;
};

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_QUANTIZEDBASEFILE_H
