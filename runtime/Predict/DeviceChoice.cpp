// SPDX-License-Identifier: MIT

// Parses --device and describes its machines.

#include "runtime/Predict/DeviceChoice.h"

namespace qlora {

Status DeviceChoice::describeNetwork(int64_t gpusPerNode,
                                     const std::string &network) {
  if (gpusPerNode == 0 && network.empty())
    return Status::ok();
  if (!gpu || !gpu->gpu)
    return Status::invalid("--gpus-per-node and --network need a prediction "
                           "for a GPU. Fix: add --simulate h100");
  return gpu->describeNetwork(gpusPerNode, network);
}

Status DeviceChoice::describeFailures(double hours) {
  if (hours > 0 && (!gpu || !gpu->gpu))
    return Status::invalid("--node-mtbf-hours needs a prediction for a GPU. "
                           "Fix: add --simulate h100");
  machineHours = hours;
  return Status::ok();
}

StatusOr<DeviceChoice> parseDevice(const std::string &text) {
  constexpr std::string_view kNull = "null:";
  if (text == "auto" || text == "cpu" || text == "cuda")
    return DeviceChoice();
  if (text == "null")
    return DeviceChoice{true, std::nullopt};
  if (!text.starts_with(kNull) || text.size() == kNull.size())
    return Status::invalid(
        "--device: '{}' is not supported; choose from: auto, cpu, cuda, null. "
        "To predict a step: --simulate with one of {}, or a device.json",
        text, fmt::join(knownGpus(), ", "));
  auto gpu = findDeviceProfile(text.substr(kNull.size()));
  if (!gpu.isOk())
    return gpu.status().withContext("--simulate " + text.substr(kNull.size()));
  return DeviceChoice{true, std::move(gpu).value()};
}

} // namespace qlora
