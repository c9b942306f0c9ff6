// SPDX-License-Identifier: MIT

// What a command costs on a device: its kernels or its transfer, as timeline
// items. The one price list: of the compiler, for plans in memory, and of the
// runtime's predictions.

#ifndef QLORA_RUNTIME_PREDICT_COMMANDPRICE_H
#define QLORA_RUNTIME_PREDICT_COMMANDPRICE_H

#include <optional>
#include <string_view>
#include <vector>

#include "runtime/Module/CommandWork.h"
#include "runtime/Predict/Timeline.h"

namespace qlora {

/// A collective, or a copy over a GPU's bus.
struct Transfer {
  std::string_view kind, group;
  double bytes = 0; ///< of the larger operand
};

struct CommandPrice {
  std::vector<TimelineItem> items;    ///< in order; at least one
  std::vector<CommandKernel> kernels; ///< one per item, of a kernel's command
  std::optional<Transfer> transfer;
};

/// Prices commands of `module` in a run of `ranks` ranks, or of one mesh if
/// that has more ranks. The arguments must outlive this.
class PriceList {
public:
  PriceList(const LoadedModule &module, const DeviceProfile &device,
            int64_t ranks)
      : module(module), device(device),
        groups(module.groups().onAtLeast(ranks)) {}

  /// `isUpdate`: the command is in UPDATE. `row`: the row of Kernels.def that
  /// executes a library launch; null: the row that the module names.
  CommandPrice of(const qlora_command &command, bool isUpdate,
                  const KernelRow *row = nullptr) const;

private:
  const LoadedModule &module;
  const DeviceProfile &device;
  const GroupSizes groups;
};

/// Simulates one run of an entry, which does not wait for other stages.
/// `spans` is null, or receives one span per command: from the start of its
/// first kernel to the end of its last.
Timeline timeEntry(const LoadedModule &module, const qlora_entry &entry,
                   const PriceList &prices,
                   QueueSharing sharing = QueueSharing::kSideBySide,
                   std::vector<TimelineSpan> *spans = nullptr);

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_COMMANDPRICE_H
