// SPDX-License-Identifier: MIT

// Quantised bases that are kept from run to run: a folder of files KEY.base
// (BaseKey.h says what a key stands for, BaseFile.h what is in a file), of
// which all runs and ranks of a machine map the same pages. Any of them may be
// deleted at any time; a run that has mapped one keeps it until it ends.
//
// A file is read whole, and its checksums compared, before it is used: a
// damaged one is made again. That read is the one that the first step would
// have done.
//
// The folder is bounded: before a base is added, those that were not used for
// the longest time make room (KeptFiles.h says which ones stay).

#ifndef QLORA_RUNTIME_WEIGHTS_BASECACHE_H
#define QLORA_RUNTIME_WEIGHTS_BASECACHE_H

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"
#include "runtime/Weights/BaseWriter.h"

namespace qlora {

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
  /// it.
  StatusOr<std::unique_ptr<BaseWriter>>
  write(const std::string &key, std::span<const uint8_t> arena) const;

private:
  Status makeRoom(uint64_t bytes) const;

  std::string folder;
  uint64_t limit;
};

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_BASECACHE_H
