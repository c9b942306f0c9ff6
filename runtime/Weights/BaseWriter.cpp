// SPDX-License-Identifier: MIT

// An atomic file, chunk by chunk.

#include "runtime/Weights/BaseWriter.h"

#include <sys/resource.h>

#include <algorithm>

#include "runtime/Base/Exceptions.h"
#include "runtime/Base/StopSignal.h"
#include "runtime/Weights/BaseFile.h"

namespace qlora {

StatusOr<std::unique_ptr<BaseWriter>>
BaseWriter::start(const std::string &path, const std::string &key,
                  std::span<const uint8_t> arena) {
  QLORA_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  // Where the file system cannot reserve, a full disk shows when it is full.
  QLORA_RETURN_IF_ERROR(file.reserve(baseFileBytes(arena.size()),
                                     AtomicFile::Reserve::kWhereItCan));
  std::unique_ptr<BaseWriter> writer(
      new BaseWriter(std::move(file), key, arena));
  BaseWriter *self = writer.get();
  self->thread = std::thread([self] { self->writeInBackground(); });
  return writer;
}

void BaseWriter::writeInBackground() {
  // Of this thread alone, in Linux.
  setpriority(PRIO_PROCESS, 0, 19);
  status = endExceptions("the thread that writes it",
                         [this] { return writeRest(shouldStop); });
}

Status BaseWriter::writeRest(const std::atomic<bool> &stop) {
  while (checksums.size() < baseChunks(arena.size())) {
    if (stop || stopSignal())
      return Status::ok();
    QLORA_RETURN_IF_ERROR(writeChunk());
  }
  return publish();
}

Status BaseWriter::writeChunk() {
  const uint64_t first = checksums.size() * kBaseChunk;
  const auto chunk =
      arena.subspan(first, std::min(kBaseChunk, arena.size() - first));
  QLORA_RETURN_IF_ERROR(file.writeAt(first, chunk));
  checksums.push_back(baseChecksum(chunk));
  return Status::ok();
}

Status BaseWriter::publish() {
  QLORA_RETURN_IF_ERROR(
      file.writeAt(baseTrailerOffset(arena.size()),
                   baseTrailer(key, arena.size(), checksums)));
  // Its readers compare checksums.
  QLORA_RETURN_IF_ERROR(file.commit(AtomicFile::Flush::kNo));
  isWhole = true;
  return Status::ok();
}

Status BaseWriter::finish() {
  shouldStop = true;
  if (thread.joinable())
    thread.join();
  if (status.isOk() && !isWhole)
    status = writeRest(/*stop=*/std::atomic<bool>(false));
  return status;
}

BaseWriter::~BaseWriter() {
  shouldStop = true;
  if (thread.joinable())
    thread.join();
}

} // namespace qlora
