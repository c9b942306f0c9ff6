// SPDX-License-Identifier: MIT

// NVML as a table of functions: what else runs on a card, how busy it is and
// what it draws. It comes with the driver; a machine without it gets a message
// with less in it, and metrics without readings.
//
// A table lives as long as the process. Thread-safe after open().

#ifndef QLORA_RUNTIME_DEVICE_CUDA_NVMLAPI_H
#define QLORA_RUNTIME_DEVICE_CUDA_NVMLAPI_H

#include <optional>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Device/Device.h"
#include "runtime/Kernels/Cuda/CudaTypes.h"

namespace qlora {

/// libnvidia-ml.so.1, of driver 510 or later.
struct Nvml {
  /// kUnavailable, in one line, where there is none, where it lacks a function
  /// and where it does not start.
  static StatusOr<const Nvml *> open();
  /// The same of another file, which stays open too. For tests.
  static StatusOr<Nvml> openFile(const char *file);

#define QLORA_NVML(Name, Symbol, Parameters) nvmlReturn_t(*Name) Parameters;
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
};

struct CardProcess {
  unsigned pid = 0;             ///< as the driver counts, outside of containers
  std::string name;             ///< of its program; empty where unreadable
  std::optional<uint64_t> bytes; ///< of the card's memory, where known
};

/// The processes other than this one that have memory of a card, most first.
/// Empty where NVML does not tell, as in most containers.
std::vector<CardProcess> otherProcesses(const Nvml &nvml,
                                        const std::string &pciBusId);

/// How busy the card is, and its power. Empty where NVML does not tell either.
CardReadings cardReadings(const Nvml &nvml, const std::string &pciBusId);

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_NVMLAPI_H
