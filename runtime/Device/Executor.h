// SPDX-License-Identifier: MIT

// Walks the commands of an entry on a device. The program is straight-line
// and the device knows its queues, so this is a loop and an error context.

#ifndef QLORA_RUNTIME_DEVICE_EXECUTOR_H
#define QLORA_RUNTIME_DEVICE_EXECUTOR_H

#include "runtime/Base/Status.h"
#include "runtime/Device/Device.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// Runs `entry` of the module that `device` has loaded and waits for it
/// (Device::begin has the last two). An error says the entry, the number of
/// the command and its label; the device is then unusable.
Status runEntry(Device &device, const LoadedModule &module,
                const qlora_entry &entry, const qlora_step_block &step,
                bool onAllRanks = true);

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_EXECUTOR_H
