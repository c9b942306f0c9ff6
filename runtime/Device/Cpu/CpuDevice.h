// SPDX-License-Identifier: MIT

// The CPU as a device, and the oracle of the others. The compute queue (and
// the copy queue, whose commands take their place in it) runs on the caller's
// thread, with one OpenMP pool; the communication queue has a thread of its
// own (CommunicationQueue.h).

#ifndef QLORA_RUNTIME_DEVICE_CPU_CPUDEVICE_H
#define QLORA_RUNTIME_DEVICE_CPU_CPUDEVICE_H

#include <memory>

#include "runtime/Device/Device.h"

namespace qlora {

std::unique_ptr<Device> createCpuDevice(const DeviceOptions &options);

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CPU_CPUDEVICE_H
