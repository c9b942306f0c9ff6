// SPDX-License-Identifier: MIT

// Scans files, or maps the indexes that another rank has made.

#include "runtime/Data/StoreIndexes.h"

#include "runtime/Base/HostMemory.h"

namespace qlora {

/// Gives each store a part of memory.
static void setIndexes(std::span<TokenStore *const> stores, HostMemory given) {
  const auto memory = std::make_shared<const HostMemory>(std::move(given));
  uint64_t offset = 0;
  for (TokenStore *store : stores) {
    store->setIndex(memory, offset);
    offset += store->indexBytes();
  }
}

Status makeIndexes(std::span<TokenStore *const> stores, RankGroup *group) {
  uint64_t bytes = 0;
  std::string key;
  for (const TokenStore *store : stores) {
    bytes += store->indexBytes();
    key += store->indexKey() + "\n";
  }
  const RankGroup::Work scan = [&](const std::function<Status()> &often) {
    for (TokenStore *store : stores)
      QLORA_RETURN_IF_ERROR(store->scan(often));
    return Status::ok();
  };
  if (!group || group->size() == 1) {
    QLORA_ASSIGN_OR_RETURN(HostMemory memory, HostMemory::anonymous(bytes));
    setIndexes(stores, std::move(memory));
    return scan([] { return Status::ok(); });
  }
  QLORA_ASSIGN_OR_RETURN(const std::vector<std::string> keys,
                         group->collectives().allGather(key));
  const bool isFirst = group->isFirstOfMachine();
  const bool scans =
      isFirst || keys[static_cast<size_t>(group->firstOfMachine())] != key;
  FileDescriptor shared;
  if (isFirst) {
    QLORA_ASSIGN_OR_RETURN(int fd,
                           HostMemory::createShared("qlora-rows", bytes));
    shared = FileDescriptor(fd);
  }
  if (scans) {
    QLORA_ASSIGN_OR_RETURN(HostMemory memory,
                           isFirst ? HostMemory::shared(shared.get(), bytes)
                                   : HostMemory::anonymous(bytes));
    setIndexes(stores, std::move(memory));
  }
  QLORA_RETURN_IF_ERROR(group->workWhileOthersWait(scans ? scan : nullptr));
  QLORA_ASSIGN_OR_RETURN(
      shared,
      group->shareForReading("rows", std::move(shared), scans ? 0 : bytes));
  if (!scans) {
    QLORA_ASSIGN_OR_RETURN(HostMemory memory,
                           HostMemory::readOnly(shared.get(), bytes));
    setIndexes(stores, std::move(memory));
  }
  return Status::ok();
}

} // namespace qlora
