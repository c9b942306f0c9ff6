// SPDX-License-Identifier: MIT

// The cache of quantized bases: a folder of files KEY.base (QuantizedBase.h
// defines the key), whose pages all runs and ranks of a machine share. Any file
// may be deleted at any time; runs that have mapped it can still use it.
//
// A file is the FROZEN arena as in memory, so that it is used in place,
// followed by a trailer that shows whether it is complete.
//
//   0             the arena
//   next page     head: magic, version, bytes of the arena and of a chunk, key
//                 checksums u64, one for each chunk of the arena
//                 checksum u64 of the head and the checksums
//
// The trailer is written last, so an unfinished file has none. Integers have
// the machine's byte order; on other machines the check of the version fails.
//
// The checksum is XXH3, as fast as memory. It detects damage, not tampering.

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

/// Returns the size of a base file for an arena of `arenaBytes`.
uint64_t baseFileBytes(uint64_t arenaBytes);
/// Returns the offset of the trailer, which follows the arena.
uint64_t baseTrailerOffset(uint64_t arenaBytes);

/// Writes a base file while the run that made the base trains. A thread of the
/// lowest priority copies the arena, which is read-only by then, to an
/// AtomicFile. So the first start waits only for the reservation of disk space,
/// and readers find a complete file or none. If two runs write the same base,
/// the last one wins, with the same bytes. A killed run leaves a *.part.* file,
/// which QuantizedBaseCache removes a day later. Data passes through the page
/// cache of the system, which is not memory of this process.
///
/// One thread must create, finish and destroy it.
class QuantizedBaseWriter {
public:
  /// Reserves disk space and starts the thread. `arena` must outlive the
  /// writer. kResourceExhausted if the disk is too full; no file is left then.
  static StatusOr<std::unique_ptr<QuantizedBaseWriter>>
  start(const std::string &path, const std::string &key,
        std::span<const uint8_t> arena);

  /// Writes the chunks that are missing, on the calling thread. After a stop
  /// signal (StopSignal.h), stops writing and keeps no file.
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

/// The folder of bases. Each file is read completely and its checksums are
/// compared before use, which also loads its pages for the first step. A
/// damaged base is quantized again. Before a base is added, the least recently
/// used bases are removed (keepRecentFiles in UserFiles.h).
class QuantizedBaseCache {
public:
  /// `limit`: bytes of all files together, except those used in the last hour.
  QuantizedBaseCache(std::string folder, uint64_t limit)
      : folder(std::move(folder)), limit(limit) {}

  std::string fileOf(const std::string &key) const {
    return folder + "/" + key + ".base";
  }

  /// Opens the file of a base for FrozenArena::filled() and marks it as used.
  /// Returns a closed descriptor if it is missing, kDataLoss if it is damaged.
  StatusOr<FileDescriptor> open(const std::string &key,
                                uint64_t arenaBytes) const;

  /// Makes space and starts to write the base, also over a damaged file.
  /// kResourceExhausted if the limit, the folder or the disk does not allow it.
  /// `together`: number of ranks that write a base of this size at the same
  /// time; space is made for all of them.
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
