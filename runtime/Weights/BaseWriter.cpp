// SPDX-License-Identifier: MIT

// A file beside the wanted one, chunk by chunk.

#include "runtime/Weights/BaseWriter.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "runtime/Weights/BaseFile.h"

namespace qlora {

Status BaseWriter::failure(const char *what) const {
  return Status::error(
      StatusCode::kResourceExhausted, "cannot {} '{}' ({:.1f} MiB): {}", what,
      path, static_cast<double>(baseFileBytes(arena.size())) / (1 << 20),
      std::strerror(errno));
}

Status BaseWriter::reserve() {
  std::string name = path + ".part.XXXXXX";
  file = FileDescriptor(mkostemp(name.data(), O_CLOEXEC));
  if (!file.isOpen())
    return failure("create");
  beside = name;
  // Where the file system cannot reserve, a full disk shows when it is full.
  if (fallocate(file.get(), 0, 0,
                static_cast<off_t>(baseFileBytes(arena.size()))) != 0 &&
      errno != EOPNOTSUPP && errno != ENOSYS)
    return failure("find room for");
  return Status::ok();
}

StatusOr<std::unique_ptr<BaseWriter>>
BaseWriter::start(const std::string &path, const std::string &key,
                  std::span<const uint8_t> arena) {
  std::unique_ptr<BaseWriter> writer(new BaseWriter(path, key, arena));
  QLORA_RETURN_IF_ERROR(writer->reserve());
  BaseWriter *self = writer.get();
  self->thread = std::thread([self] { self->writeInBackground(); });
  return writer;
}

void BaseWriter::writeInBackground() {
  // Of this thread alone, in Linux.
  setpriority(PRIO_PROCESS, 0, 19);
  status = writeRest(shouldStop);
}

Status BaseWriter::writeRest(const std::atomic<bool> &stop) {
  while (checksums.size() < baseChunks(arena.size())) {
    if (stop)
      return Status::ok();
    QLORA_RETURN_IF_ERROR(writeChunk());
  }
  return publish();
}

Status BaseWriter::writeAt(uint64_t offset,
                           std::span<const uint8_t> bytes) const {
  while (!bytes.empty()) {
    const ssize_t put = pwrite(file.get(), bytes.data(), bytes.size(),
                               static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR)
      continue;
    if (put < 0)
      return failure("write");
    bytes = bytes.subspan(static_cast<size_t>(put));
    offset += static_cast<uint64_t>(put);
  }
  return Status::ok();
}

Status BaseWriter::writeChunk() {
  const uint64_t first = checksums.size() * kBaseChunk;
  const auto chunk =
      arena.subspan(first, std::min(kBaseChunk, arena.size() - first));
  QLORA_RETURN_IF_ERROR(writeAt(first, chunk));
  checksums.push_back(baseChecksum(chunk));
  return Status::ok();
}

Status BaseWriter::publish() {
  QLORA_RETURN_IF_ERROR(writeAt(baseTrailerOffset(arena.size()),
                                baseTrailer(key, arena.size(), checksums)));
  if (close(file.release()) != 0)
    return failure("write");
  if (std::rename(beside.c_str(), path.c_str()) != 0)
    return failure("rename a file to");
  beside.clear();
  return Status::ok();
}

Status BaseWriter::finish() {
  shouldStop = true;
  if (thread.joinable())
    thread.join();
  if (status.isOk() && !beside.empty())
    status = writeRest(/*stop=*/std::atomic<bool>(false));
  return status;
}

BaseWriter::~BaseWriter() {
  shouldStop = true;
  if (thread.joinable())
    thread.join();
  if (!beside.empty())
    unlink(beside.c_str());
}

} // namespace qlora
