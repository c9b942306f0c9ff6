// SPDX-License-Identifier: MIT

// What a tool says of itself: the options of its tables as --help and
// --help-all show them, in argparse's layout, within 80 columns, with every
// other spelling of each option.

#ifndef QLORA_RUNTIME_BASE_OPTIONHELP_H
#define QLORA_RUNTIME_BASE_OPTIONHELP_H

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/OptionTable.h"

namespace qlora {

/// The options of some scopes among rows.
struct HelpSection {
  std::span<const OptionRow> rows;
  std::vector<OptionScope> scopes;
  std::string_view heading; ///< over them all; empty: over each group its own
};

struct Tool {
  std::string_view version = {}; ///< the answer to --version
  /// "usage: tool INPUT [options]", and what it does.
  std::string_view usage = {};
  std::string_view input = {}; ///< what it calls its input: "MODEL.mlir"
  std::vector<std::string_view> common = {}; ///< options of --help, in order
  std::string_view example = {};             ///< what --help ends with
  std::vector<HelpSection> sections = {};    ///< of --help-all
  std::string_view footer = {};              ///< what --help-all ends with
  std::vector<std::span<const OptionRow>> tables = {}; ///< all that it takes
  /// Whether another parser knows a flag of this name (without dashes).
  bool (*isForeign)(const std::string &name) = nullptr;
};

/// --help, --help-all and --version, which every tool has.
std::span<const OptionRow> questionTable();

std::string commonHelp(const Tool &tool);
std::string fullHelp(const Tool &tool);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_OPTIONHELP_H
