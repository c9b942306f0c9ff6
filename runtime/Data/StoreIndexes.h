// SPDX-License-Identifier: MIT

// Makes the indexes of all files of a run. A file is read and checked
// completely once on each machine: by the machine's first rank, which then
// shares the indexes. Ranks of the machine that have other files read their
// own. All ranks check each row again when they read it.

#ifndef QLORA_RUNTIME_DATA_STOREINDEXES_H
#define QLORA_RUNTIME_DATA_STOREINDEXES_H

#include <span>

#include "runtime/Data/TokenStore.h"
#include "runtime/Ranks/RankGroup.h"

namespace qlora {

/// Makes the indexes of opened files, in one block of memory. All ranks of
/// `group` call this, also those without files. Null: there is one rank.
Status makeIndexes(std::span<TokenStore *const> stores, RankGroup *group);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_STOREINDEXES_H
