// SPDX-License-Identifier: MIT

// Quantised bases that are kept from run to run: a folder of files KEY.base
// (FrozenBase.h says what a key stands for), of which all runs and ranks of a
// machine map the same pages. Any of them may be deleted at any time; a run that
// has mapped one keeps it until it ends.
//
// A file is the FROZEN arena as it is in memory, so that it is used in place,
// and behind it what shows that it is whole.
//
//   0             the arena
//   next page     head: magic, version, bytes of the arena and of a chunk, key
//                 checksums u64, one for each chunk of the arena
//                 checksum u64 of the head and the checksums
//
// The part behind the arena is written last: a file that was not finished has
// none. Numbers are those of the machine; a file of another byte order has
// another version.
//
// The checksum is XXH3, as fast as memory. It finds damage, not malice.

#ifndef QLORA_RUNTIME_WEIGHTS_BASEFILE_H
#define QLORA_RUNTIME_WEIGHTS_BASEFILE_H

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/Base/AtomicFile.h"
#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Bytes with a checksum of their own: what is read or written at a time.
inline constexpr uint64_t kBaseChunk = uint64_t{4} << 20;

/// Of a whole file, for an arena of so many bytes.
uint64_t baseFileBytes(uint64_t arenaBytes);
/// Where the part behind the arena starts.
uint64_t baseTrailerOffset(uint64_t arenaBytes);

/// Writes a base file while the run that made the base trains: a thread of the
/// lowest priority copies the arena, which nobody writes any more, to an
/// AtomicFile. So the first start waits for nothing but the reservation of the
/// disk, readers find a whole file or none, and of two runs that write the same
/// base the last one wins with the same bytes. A run that is killed leaves a
/// *.part.* file, which BaseCache removes a day later. Data goes through the
/// system's page cache, which is not memory of this process.
///
/// Used by one thread, which makes, finishes and destroys it.
class BaseWriter {
public:
  /// `arena` outlives the writer. The disk's space is taken here:
  /// kResourceExhausted where there is not enough, and nothing is left behind.
  static StatusOr<std::unique_ptr<BaseWriter>>
  start(const std::string &path, const std::string &key,
        std::span<const uint8_t> arena);

  /// What is not yet written is written now, by the caller; after a signal to
  /// stop (StopSignal.h) nothing is, and nothing is kept.
  Status finish();

  /// Without finish(): stops, and removes what is not a whole file.
  ~BaseWriter();

private:
  BaseWriter(AtomicFile file, std::string key, std::span<const uint8_t> arena)
      : file(std::move(file)), key(std::move(key)), arena(arena) {}

  void writeInBackground();
  Status writeRest(const std::atomic<bool> &stop);
  Status writeChunk();
  Status publish();

  AtomicFile file;
  const std::string key;
  const std::span<const uint8_t> arena;
  std::vector<uint64_t> checksums; ///< of the chunks that are written
  Status status;
  bool isWhole = false; ///< and in its place
  std::atomic<bool> shouldStop = false;
  std::thread thread;
};

/// The folder. A file is read whole, and its checksums compared, before it is
/// used: a damaged one is made again. That read is the one that the first step
/// would have done. Before a base is added, those that were not used for the
/// longest time make room (UserFiles.h says which ones stay).
class BaseCache {
public:
  /// `limit`: bytes of all files together, but for those of the last hour.
  BaseCache(std::string folder, uint64_t limit)
      : folder(std::move(folder)), limit(limit) {}

  std::string fileOf(const std::string &key) const {
    return folder + "/" + key + ".base";
  }

  /// The file of a base, for FrozenArena::filled(), and marks it as used; a
  /// closed descriptor where there is none. kDataLoss: it is damaged.
  StatusOr<FileDescriptor> open(const std::string &key,
                                uint64_t arenaBytes) const;

  /// Makes room and starts to write the base, over a damaged file too.
  /// kResourceExhausted where the limit, the folder or the disk does not allow
  /// it. `together`: so many of this size are written at the same time, each by
  /// a rank, and there is to be room for all.
  StatusOr<std::unique_ptr<BaseWriter>> write(const std::string &key,
                                              std::span<const uint8_t> arena,
                                              uint64_t together = 1) const;

private:
  Status makeRoom(uint64_t bytes) const;

  std::string folder;
  uint64_t limit;
};

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_BASEFILE_H
