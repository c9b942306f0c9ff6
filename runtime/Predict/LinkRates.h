// SPDX-License-Identifier: MIT

// What is between the ranks of a run, measured for the cost model: collectives
// of a few sizes, their medians on the slowest rank, and the two numbers of
// each link that explain them best (CollectiveCost.h has what a collective asks
// of a link).
//
// They are done as in a step, by a thread that another one waits for, with
// memory that no core has in a cache of its own; but ranks do nothing else
// meanwhile. What one waits for another that comes late is not in their times:
// all meet before each.

#ifndef QLORA_RUNTIME_PREDICT_LINKRATES_H
#define QLORA_RUNTIME_PREDICT_LINKRATES_H

#include <span>

#include "runtime/Predict/CollectiveCost.h"
#include "runtime/Ranks/RankGroup.h"

namespace qlora {

/// A collective as it was measured.
struct LinkSample {
  LinkUse use;
  double seconds = 0;
};

/// messages * a + bytes * b = seconds, with the least squares of relative
/// errors. Neither is below a tenth of the most that any sample leaves for it:
/// noise must not make a link free. The samples have more than one ratio of
/// messages to bytes.
LinkRate fitLink(std::span<const LinkSample> samples);

/// The group TP of each rank has those of its machine, of which there are as
/// many on all. All ranks call it, and have the same result: links inside a
/// machine where it has several ranks, and the network where there are several
/// machines.
StatusOr<RankLinks> measureLinks(RankGroup &ranks);

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_LINKRATES_H
