// SPDX-License-Identifier: MIT

// The rows of option tables as --help and --help-all show them: in argparse's
// layout, within 80 columns, with every other spelling of each option.

#ifndef QLORA_RUNTIME_BASE_OPTIONHELP_H
#define QLORA_RUNTIME_BASE_OPTIONHELP_H

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/OptionTable.h"

namespace qlora {

/// The options of these names, which are in a table, in their order.
std::string optionHelp(OptionTables tables,
                       std::span<const std::string_view> names);

/// The options of some scopes among rows.
struct HelpSection {
  std::span<const OptionRow> rows;
  std::vector<OptionScope> scopes;
  std::string_view heading; ///< over them all; empty: over each group its own
};

std::string optionHelp(std::span<const HelpSection> sections);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_OPTIONHELP_H
