// SPDX-License-Identifier: MIT

// The options that choose the device of a run or of a prediction.

#ifndef QLORA_RUNTIME_PREDICT_DEVICECHOICE_H
#define QLORA_RUNTIME_PREDICT_DEVICECHOICE_H

#include <optional>
#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Kernels/DeviceProfile.h"

namespace qlora {

/// The parsed `--device`: whether it is the null device, and the GPU to
/// simulate. Values are auto, cpu, cuda, null, and null:GPU (`--simulate GPU`).
struct DeviceChoice {
  bool isNull = false;
  std::optional<DeviceProfile> gpu;
  /// Mean hours between failures of a machine; 0: not given.
  double machineHours = 0;

  /// Calls DeviceProfile::describeNetwork. Fails without a simulated GPU.
  Status describeNetwork(int64_t gpusPerNode, const std::string &network);
  Status describeFailures(double hours);
};
StatusOr<DeviceChoice> parseDevice(const std::string &text);

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_DEVICECHOICE_H
