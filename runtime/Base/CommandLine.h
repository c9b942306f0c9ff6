// SPDX-License-Identifier: MIT

// The command line of a tool, by CLI11: its own options and those of a run
// (OptionTable.h).
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

#include "runtime/Base/OptionHelp.h"
#include "runtime/Base/Options.h"
#include "runtime/Base/Status.h"

namespace qlora {

struct CommandLine {
  std::vector<OptionSetting> settings; ///< the last of an option wins
  std::vector<std::string> rest;       ///< what is no option: files
  std::vector<std::string> foreign;    ///< flags of another parser
  std::string answer; ///< to --help, --help-all or --version: nothing is done
};

/// `words` is argv without the program's name. Values are not looked at:
/// Options::applySettings parses them.
StatusOr<CommandLine> parseCommandLine(std::span<const std::string> words,
                                       const Tool &tool);

/// The one input that a tool has.
StatusOr<std::string> onlyInput(const CommandLine &line, const Tool &tool);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_COMMANDLINE_H
