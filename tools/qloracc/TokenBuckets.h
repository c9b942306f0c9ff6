// SPDX-License-Identifier: MIT

// Which token buckets a program gets: the lengths of a line that short rows
// share (--padding-free, runtime/Data/StepPacking.h).

#ifndef QLORA_TOOLS_QLORACC_TOKENBUCKETS_H
#define QLORA_TOOLS_QLORACC_TOKENBUCKETS_H

#include <cstdint>
#include <vector>

#include "runtime/Base/Options.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Ascending, from an eighth of `tokens` to all of them, multiples of 64 where
/// not the last. An octave has four at equal distances, at most thirteen in all:
/// before rounding each is at least 4/5 of the next, so that 9 % of a line is
/// padding on average (eight rows of 40 to 512 tokens; 17 % with two to an
/// octave, 6 % with six). Each costs the compile of a variant, and a run the
/// kernels that are prepared for it: 4 MiB of 24 layers.
std::vector<int64_t> tokenBuckets(int64_t tokens);

/// What padding_free asks for; auto: where train_file has rows (JSONL, or a
/// rows file of qlora-data).
StatusOr<bool> wantsTokenBuckets(const Options &options);

} // namespace qlora

#endif // QLORA_TOOLS_QLORACC_TOKENBUCKETS_H
