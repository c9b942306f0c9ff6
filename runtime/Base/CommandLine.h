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
#include <string_view>
#include <vector>

#include "runtime/Base/OptionTable.h"
#include "runtime/Base/Options.h"
#include "runtime/Base/Status.h"

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

// Answers (OptionHelp.cpp): the options of the tables as --help and --help-all
// show them, in argparse's layout, within 80 columns, with every other spelling
// of each option.

/// --help, --help-all and --version, which every tool has.
std::span<const OptionRow> questionTable();

std::string commonHelp(const Tool &tool);
std::string fullHelp(const Tool &tool);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_COMMANDLINE_H
