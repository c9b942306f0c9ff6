// SPDX-License-Identifier: MIT

// A file that appears whole or not at all: it is written as a part beside its
// path (PATH.part.XXXXXXXX, in the same folder, so that a rename is all that
// is left to do) and takes its place at the end. Whatever fails before leaves
// what was there unharmed; a process that is killed leaves the part, which
// everybody who looks at the folder knows by its name.
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

/// Movable. Errors are kResourceExhausted where the disk is full, else
/// kUnavailable, and name the path.
class AtomicFile {
public:
  static StatusOr<AtomicFile> create(const std::string &path);
  AtomicFile(AtomicFile &&) noexcept = default;
  AtomicFile &operator=(AtomicFile &&) = delete;
  /// Removes the part that was not committed.
  ~AtomicFile();

  /// Gives the part its size and its blocks, so that writing needs none. Where
  /// a file system cannot set blocks aside: with kEach a byte is written into
  /// each of them, which a compressing one, or one that writes elsewhere what
  /// is written again (ZFS), makes a look at the space and no promise; with
  /// kWhereItCan nothing is.
  enum class Reserve { kEach, kWhereItCan };
  Status reserve(uint64_t bytes, Reserve how = Reserve::kEach);

  /// After what write() has written so far.
  Status write(std::string_view bytes);
  Status writeAt(uint64_t offset, std::span<const uint8_t> bytes);

  /// Takes the path. With kYes a crash of the machine leaves the old file or
  /// the new one; with kNo, for caches whose readers check what they read, it
  /// may leave a part of the new one under its name.
  enum class Flush { kYes, kNo };
  Status commit(Flush flush = Flush::kYes);

  const std::string &path() const { return target; }
  /// Whether a file of that name is a part, by its end.
  static bool isPart(std::string_view path);
  /// Whether nobody has removed the part.
  bool isThere() const;

private:
  AtomicFile(FileDescriptor file, std::string target, std::string part)
      : file(std::move(file)), target(std::move(target)),
        part(std::move(part)) {}
  Status failure(std::string_view what, int error) const;

  FileDescriptor file; ///< closed: committed, or moved from
  std::string target, part;
  uint64_t written = 0;
};

/// That renames in a folder survive a crash of the machine.
void flushFolder(const std::string &folder);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_ATOMICFILE_H
