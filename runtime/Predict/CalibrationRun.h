// SPDX-License-Identifier: MIT

// `qlora-run --calibrate`: measures this machine's rates for device.json. If
// there are several ranks, on one or more machines, also measures their links.
//
// All ranks measure their kernels at once, as in training: each has its own
// threads and its fraction of the memory bandwidth. Rank 0's rates are written.
// Then the ranks measure the links between them (LinkRates.h).

#ifndef QLORA_RUNTIME_PREDICT_CALIBRATIONRUN_H
#define QLORA_RUNTIME_PREDICT_CALIBRATIONRUN_H

#include <string>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"
#include "runtime/Ranks/RankEnvironment.h"

namespace qlora {

struct CalibrationRequest {
  std::string path = "device.json";
  int threads = 1; ///< compute threads of this rank
  /// Path of this machine's profile with measured kernel rates; empty: none.
  /// With it, only the links between these ranks are measured, and the
  /// profile's rates of other links are kept.
  std::string profile;
};

/// Measures as one rank of a run. Rank 0 writes the file and returns its text;
/// other ranks return "". `listening`: as in RankGroup::join.
StatusOr<std::string> runCalibration(const CalibrationRequest &request,
                                     const RankEnvironment &env,
                                     FileDescriptor listening);

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_CALIBRATIONRUN_H
