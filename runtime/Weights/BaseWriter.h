// SPDX-License-Identifier: MIT

// Writes a base file (BaseFile.h) while the run that made the base trains: a
// thread of the lowest priority copies the arena, which nobody writes any
// more, to an AtomicFile. So the first start waits for nothing but the
// reservation of the disk, readers find a whole file or none, and of two runs
// that write the same base the last one wins with the same bytes. A run that
// is killed leaves a *.part.* file, which BaseCache removes a day later.
//
// Data goes through the system's page cache, which is not memory of this
// process and is given back when something else needs it.

#ifndef QLORA_RUNTIME_WEIGHTS_BASEWRITER_H
#define QLORA_RUNTIME_WEIGHTS_BASEWRITER_H

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "runtime/Base/AtomicFile.h"
#include "runtime/Base/Status.h"

namespace qlora {

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

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_BASEWRITER_H
