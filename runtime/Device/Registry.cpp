// SPDX-License-Identifier: MIT

// Creates devices by name.

#include "runtime/Device/Device.h"

namespace qlora {

StatusOr<std::unique_ptr<Device>> createDevice(std::string_view name,
                                               const DeviceOptions &options) {
  if (name == "cpu")
    return createCpuDevice(options);
  if (name == "null")
    return createNullDevice(options);
  if (name == "cuda")
    return createCudaDevice(options);
  return Status::invalid("unknown device '{}'; choose from: cpu, cuda, null",
                         name);
}

} // namespace qlora
