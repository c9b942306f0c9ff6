// SPDX-License-Identifier: MIT

// Writes a file completely or not at all. The data goes to a temporary file in
// the same folder (PATH.part.XXXXXXXX), which is renamed at the end. If a step
// fails earlier, an existing file stays unchanged. A killed process leaves the
// temporary file, which isPart() recognizes by its name.
//
//   QLORA_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
//   QLORA_RETURN_IF_ERROR(file.write(text));
//   return file.commit();

#ifndef QLORA_RUNTIME_BASE_ATOMICFILE_H
#define QLORA_RUNTIME_BASE_ATOMICFILE_H

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Movable. Errors are kResourceExhausted if the disk is full, else
/// kUnavailable, and name the path.
class AtomicFile {
public:
  static StatusOr<AtomicFile> create(const std::string &path);
  AtomicFile(AtomicFile &&) noexcept = default;
  AtomicFile &operator=(AtomicFile &&) = delete;
  /// Removes the temporary file if it was not committed.
  ~AtomicFile();

  /// Sets the temporary file's size and allocates its blocks, so that writing
  /// cannot run out of space. If the file system cannot allocate blocks,
  /// kWhereItCan does nothing, and kEach writes a byte into each block. On
  /// compressing and copy-on-write file systems (ZFS), this guarantees nothing.
  enum class Reserve { kEach, kWhereItCan };
  Status reserve(uint64_t bytes, Reserve how = Reserve::kEach);

  /// Writes after the bytes of earlier write() calls.
  Status write(std::string_view bytes);
  Status writeAt(uint64_t offset, std::span<const uint8_t> bytes);

  /// Renames the temporary file to the path. If the machine crashes, kYes
  /// leaves either the old file or the complete new one. kNo may leave an
  /// incomplete new file; it is for caches whose readers check the content.
  enum class Flush { kYes, kNo };
  Status commit(Flush flush = Flush::kYes);

  const std::string &path() const { return target; }
  /// Whether `path` has the suffix of a temporary file.
  static bool isPart(std::string_view path);
  /// Whether the temporary file still exists.
  bool isThere() const;

private:
  AtomicFile(FileDescriptor file, std::string target, std::string part)
      : file(std::move(file)), target(std::move(target)),
        part(std::move(part)) {}
  Status failure(std::string_view what, int error) const;

  FileDescriptor file; ///< closed after commit() or a move
  std::string target, part;
  uint64_t written = 0;
};

/// Makes renames in a folder survive a crash of the machine.
void flushFolder(const std::string &folder);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_ATOMICFILE_H
