// SPDX-License-Identifier: MIT

// The device that runs nothing: it checks every command against the arenas
// and the other queues, lets the shared half count, and allocates no arena.
// `qlora-run train.so --device null --gpus 8` needs no hardware.

#ifndef QLORA_RUNTIME_DEVICE_NULL_NULLDEVICE_H
#define QLORA_RUNTIME_DEVICE_NULL_NULLDEVICE_H

#include <memory>

#include "runtime/Device/Device.h"

namespace qlora {

std::unique_ptr<Device> createNullDevice(const DeviceOptions &options);

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_NULL_NULLDEVICE_H
