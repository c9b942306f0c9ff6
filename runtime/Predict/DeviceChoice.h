// SPDX-License-Identifier: MIT

// What the command line says of the device of a run, or of a prediction.

#ifndef QLORA_RUNTIME_PREDICT_DEVICECHOICE_H
#define QLORA_RUNTIME_PREDICT_DEVICECHOICE_H

#include <optional>
#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Kernels/DeviceProfile.h"

namespace qlora {

/// What `--device` says: whether it is the null device, and of which card. The
/// error for anything but auto, cpu, cuda, null and null:CARD lists the cards.
struct DeviceChoice {
  bool isNull = false;
  std::optional<DeviceProfile> card;
  /// Between two failures of a machine; 0: nothing is said of them.
  double machineHours = 0;

  /// DeviceProfile::describeNetwork of a card that is a GPU.
  Status describeNetwork(int64_t gpusPerNode, const std::string &network);
  Status describeFailures(double hours);
};
StatusOr<DeviceChoice> parseDevice(const std::string &text);

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_DEVICECHOICE_H
