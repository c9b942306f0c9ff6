// SPDX-License-Identifier: MIT

// Turns the signals of a wrong memory access or a trap in a kernel into a
// result. Other signals go to their earlier handlers.

#ifndef QLORA_TESTS_CUDA_DRIVER_FAULTS_H
#define QLORA_TESTS_CUDA_DRIVER_FAULTS_H

#include <functional>
#include <optional>

namespace qlora::platform {

struct Fault {
  int signal;
  const void *address; ///< of the access, if the signal reports one
  int trap;            ///< the sanitizer's kind of check, or -1
};

/// Runs `body`. A fault ends `body` immediately, whatever stack it is on.
std::optional<Fault> catchFaults(const std::function<void()> &body);

/// Returns CUDA's error code of a fault.
int codeOf(const Fault &fault);

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_DRIVER_FAULTS_H
