// SPDX-License-Identifier: MIT

// `qlora-run --calibrate`: device.json of this machine, and of what is between
// ranks where there are several, on one machine or on more.
//
// Ranks measure their kernels all at once, as they train: each has its threads,
// and its share of the memory's bandwidth. Rank 0's rates are written. Then
// they measure the links between them (LinkRates.h).

#ifndef QLORA_RUNTIME_PREDICT_CALIBRATIONRUN_H
#define QLORA_RUNTIME_PREDICT_CALIBRATIONRUN_H

#include <string>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"
#include "runtime/Ranks/RankEnvironment.h"

namespace qlora {

struct CalibrationRequest {
  std::string path = "device.json";
  int threads = 1; ///< of this rank
  /// A profile of this machine that has the rates of kernels already: links
  /// alone are measured, and what it says of links that these ranks do not have
  /// stays. Empty: none.
  std::string profile;
};

/// Measures as one rank of a run; the text that rank 0 has written, "" on the
/// others. `listening`: as in RankGroup::join.
StatusOr<std::string> runCalibration(const CalibrationRequest &request,
                                     const RankEnvironment &env,
                                     FileDescriptor listening);

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_CALIBRATIONRUN_H
