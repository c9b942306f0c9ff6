// SPDX-License-Identifier: MIT

// A command line, taken apart by option tables: the options of a run
// (OptionTable.h) and a tool's own, such as --gpus.
//
//   --name=value  --name value  --name  --no-name  --name true
//   --list a b c
//
// with dashes or underscores. A boolean takes the next word only when that is
// true, false, yes, no, on, off, 1 or 0. A list takes the words up to the next
// flag, as argparse's nargs="+" does, but no file, so that the input may stand
// behind it: what ends in .mlir, .mlirbc or .so, or has a dot or a slash and
// exists. `--` ends the options. A one-letter alias takes one dash.

#ifndef QLORA_RUNTIME_BASE_COMMANDLINE_H
#define QLORA_RUNTIME_BASE_COMMANDLINE_H

#include <span>
#include <string>
#include <vector>

#include "runtime/Base/OptionTable.h"
#include "runtime/Base/Options.h"
#include "runtime/Base/Status.h"

namespace qlora {

struct CommandLine {
  std::vector<OptionSetting> settings; ///< in the order written
  /// What is no option: files, and with kKeep also flags of no table.
  std::vector<std::string> rest;
};

enum class UnknownFlags {
  kReject, ///< an error with the nearest name
  kKeep,   ///< passed on in `rest`, for another parser
};

/// `words` is argv without the program's name. Values are not looked at:
/// Options::applySettings parses them.
StatusOr<CommandLine>
parseCommandLine(std::span<const std::string> words,
                 OptionTables tables, UnknownFlags unknown);

/// The error for a flag of no table, `--name=value` or `--name`.
Status unknownFlag(const std::string &written, OptionTables tables);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_COMMANDLINE_H
