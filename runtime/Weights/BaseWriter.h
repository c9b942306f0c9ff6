// SPDX-License-Identifier: MIT

// Writes a base file (BaseFile.h) while the run that made the base trains: a
// thread of the lowest priority copies the arena, which nobody writes any
// more, to a file beside the wanted one, and renames that. So the first start
// waits for nothing but the reservation of the disk, readers find a whole file
// or none, and of two runs that write the same base the last one wins with the
// same bytes. A run that is killed leaves a *.part.* file, which BaseCache
// removes a day later.
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

#include "runtime/Base/FileDescriptor.h"
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

  /// What is not yet written is written now, by the caller.
  Status finish();

  /// Without finish(): stops, and removes what is not a whole file.
  ~BaseWriter();

private:
  BaseWriter(std::string path, std::string key, std::span<const uint8_t> arena)
      : path(std::move(path)), key(std::move(key)), arena(arena) {}

  Status reserve();
  void writeInBackground();
  Status writeRest(const std::atomic<bool> &stop);
  Status writeChunk();
  Status writeAt(uint64_t offset, std::span<const uint8_t> bytes) const;
  Status publish();
  Status failure(const char *what) const;

  const std::string path;
  const std::string key;
  const std::span<const uint8_t> arena;
  std::string beside; ///< the file that is being written; empty: renamed
  FileDescriptor file;
  std::vector<uint64_t> checksums; ///< of the chunks that are written
  Status status;
  std::atomic<bool> shouldStop = false;
  std::thread thread;
};

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_BASEWRITER_H
