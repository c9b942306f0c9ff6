// SPDX-License-Identifier: MIT

// What a profile says of a command beside its time: kind, kernel, the work by
// the cost model, and the least time that the device's rates allow.

#ifndef QLORA_RUNTIME_PREDICT_COMMANDFACTS_H
#define QLORA_RUNTIME_PREDICT_COMMANDFACTS_H

#include <map>
#include <string>
#include <string_view>

#include "runtime/Device/Device.h"
#include "runtime/Kernels/DeviceProfile.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

struct CommandFacts {
  std::string name;   ///< the launch's label, or the command's kind
  std::string kernel; ///< of a launch: "matmul.onednn", "rms_norm"
  std::string_view
      kind; ///< stepPartName, "copy and fill", "collective", "wait"
  uint8_t queue = 0;
  double flops = 0; ///< of products (neededFlops)
  double bytes = 0; ///< read and written in memory; of a collective, reduced
  /// Of the device's rates, launches included; 0: not known.
  double boundSeconds = 0;
};

/// Of the commands of a module on its device, or on that of a rank of another
/// stage, which is null here: its kernels are then taken to be the planned
/// ones. What the constructor is given outlives it.
class CommandFactsTable {
public:
  CommandFactsTable(const LoadedModule &module, const Device *device,
                    const DeviceProfile &rates, int ranks)
      : module(module), device(device), rates(rates), ranks(ranks) {}

  /// Rows of the head that have no label are skipped, so that its work is
  /// that of its labelled ones. A command of UPDATE is the optimizer's.
  CommandFacts of(const TimedCommand &timed);

private:
  struct Entry {
    CommandFacts facts; ///< with all rows labelled
    bool isOfLabels = false;
  };
  Entry find(const qlora_command &command, bool isUpdate) const;
  void describeLaunch(const qlora_command &command, bool isUpdate,
                      Entry &entry) const;

  const LoadedModule &module;
  const Device *device;
  const DeviceProfile &rates;
  const int ranks;
  std::map<uint32_t, Entry> known; ///< by command
};

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_COMMANDFACTS_H
