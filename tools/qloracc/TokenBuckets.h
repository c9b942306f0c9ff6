// SPDX-License-Identifier: MIT

// Which token buckets a program gets: the lengths of a line that short rows
// share (--padding-free, runtime/Session/StepPacking.h).

#ifndef QLORA_TOOLS_QLORACC_TOKENBUCKETS_H
#define QLORA_TOOLS_QLORACC_TOKENBUCKETS_H

#include <cstdint>
#include <vector>

#include "runtime/Core/Options.h"
#include "runtime/Core/Status.h"

namespace qlora {

/// Ascending, at most seven, the last of `tokens`: each is 3/4 or 2/3 of the
/// next, so that a line is padded by a seventh on average, and a multiple of
/// 64 where it is not the last.
std::vector<int64_t> tokenBuckets(int64_t tokens);

/// What padding_free asks for; auto: where train_file has rows (JSONL, or a
/// rows file of qlora-data; a file that is not there yet counts by its name).
StatusOr<bool> wantsTokenBuckets(const Options &options);

} // namespace qlora

#endif // QLORA_TOOLS_QLORACC_TOKENBUCKETS_H
