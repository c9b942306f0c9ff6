// SPDX-License-Identifier: MIT

// Measures the links between the ranks of a run for the cost model. It times
// collectives of a few sizes, takes the median on the slowest rank, and fits
// the two coefficients of each link's cost (CollectiveCost.h).
//
// As in a step, one thread runs the collectives while another waits, on memory
// that is in no core's own cache. Unlike in a step, ranks compute nothing, and
// all ranks meet before each call, so waiting for a late rank is not measured.

#ifndef QLORA_RUNTIME_PREDICT_LINKRATES_H
#define QLORA_RUNTIME_PREDICT_LINKRATES_H

#include <span>

#include "runtime/Predict/CollectiveCost.h"
#include "runtime/Ranks/RankGroup.h"

namespace qlora {

/// A measured collective.
struct LinkSample {
  LinkUse use;
  double seconds = 0;
};

/// Fits messages * a + bytes * b = seconds by least squares of relative errors.
/// a is at least a tenth of the smallest seconds / messages of a sample, and b
/// at least a tenth of the smallest seconds / bytes. So noise cannot make a
/// link free. The samples must have more than one ratio of messages to bytes.
LinkRate fitLink(std::span<const LinkSample> samples);

/// Measures links inside a machine if it has several ranks, and the network if
/// there are several machines. In `ranks`, the group TP has the ranks of one
/// machine, the same number on each. All ranks call it and get the same result.
StatusOr<RankLinks> measureLinks(RankGroup &ranks);

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_LINKRATES_H
