// SPDX-License-Identifier: MIT

// Which rows of Kernels.def a program's launches run, in words.

#ifndef QLORA_RUNTIME_DEVICE_KERNELCHOICE_H
#define QLORA_RUNTIME_DEVICE_KERNELCHOICE_H

#include "runtime/Device/Device.h"

namespace qlora {

/// One line that names the rows of ops with more than one for the target:
///
///   kernels  attention.cudnn, attention_grad.cuda (planned: .cudnn)
///
/// A loaded device says what runs, the null device what was planned. Empty
/// where there is no such op. Why a planned row does not run is a remark of
/// the device.
std::string kernelsText(const LoadedModule &module, const Device &device);

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_KERNELCHOICE_H
