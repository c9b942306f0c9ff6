// SPDX-License-Identifier: MIT

// Turns the signals of a wrong memory access or a trap in a kernel into a
// result. Signals that are not a kernel's go to whom they went before.

#ifndef QLORA_TESTS_CUDA_DRIVER_FAULTS_H
#define QLORA_TESTS_CUDA_DRIVER_FAULTS_H

#include <functional>
#include <optional>

namespace qlora::platform {

struct Fault {
  int signal;
  const void *address; ///< of the access, where the signal tells
  int trap;            ///< the sanitizer's kind of check, or -1
};

/// Runs `body`; a fault inside ends it at once, from whatever stack.
std::optional<Fault> catchFaults(const std::function<void()> &body);

/// CUDA's error code of a fault.
int codeOf(const Fault &fault);

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_DRIVER_FAULTS_H
