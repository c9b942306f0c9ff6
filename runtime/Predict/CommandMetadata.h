// SPDX-License-Identifier: MIT

// Describes a command of a profile: kind, kernel, work according to the cost
// model, and the minimum time at the device's rates.

#ifndef QLORA_RUNTIME_PREDICT_COMMANDMETADATA_H
#define QLORA_RUNTIME_PREDICT_COMMANDMETADATA_H

#include <map>
#include <string>
#include <string_view>

#include "runtime/Device/Device.h"
#include "runtime/Kernels/DeviceProfile.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

struct CommandMetadata {
  std::string name;   ///< the launch's label, or the command's kind
  std::string kernel; ///< kernel of a launch: "matmul.onednn", "rms_norm"
  std::string_view
      kind; ///< stepPartName, "copy and fill", "collective", "wait"
  uint8_t queue = 0;
  double flops = 0; ///< FLOPs of GEMM and attention (neededFlops)
  double bytes = 0; ///< read and written; of a collective's larger operand
  /// Minimum time at the device's rates, including launches; 0: unknown.
  double boundSeconds = 0;
};

/// Describes a module's commands on `device`. `device` is null for a pipeline
/// stage on another rank; its planned kernels are then assumed. The
/// constructor's arguments must outlive the table.
class CommandMetadataTable {
public:
  CommandMetadataTable(const LoadedModule &module, const Device *device,
                       const DeviceProfile &rates, int ranks)
      : module(module), device(device), rates(rates), ranks(ranks) {}

  /// Returns the description of a timed command. The LM head's work covers
  /// labelled rows only, as kernels skip others. All commands of the entry
  /// UPDATE count as the optimizer's.
  CommandMetadata of(const TimedCommand &timed);

private:
  struct Entry {
    CommandMetadata facts; ///< values if all rows are labelled
    bool isOfLabels = false;
  };
  Entry find(const qlora_command &command, bool isUpdate) const;
  void describeLaunch(const qlora_command &command, bool isUpdate,
                      Entry &entry) const;

  const LoadedModule &module;
  const Device *device;
  const DeviceProfile &rates;
  const int ranks;
  std::map<uint32_t, Entry> known; ///< key: index of the command
};

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_COMMANDMETADATA_H
