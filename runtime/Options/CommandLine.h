// SPDX-License-Identifier: MIT

// Parses a tool's command line: its own options and a run's (OptionTable.h).
//
//   --name=value  --name value  --name  --no-name  --name true
//   --list a b c
//
// Names may have dashes or underscores. A boolean takes the next word only if
// that word is true, false, yes, no, on, off, 1 or 0. A list takes the words up
// to the next flag, as argparse's nargs="+" does, or up to the tool's input: a
// word that ends in .mlir, .mlirbc or .so, or an existing path with a dot or a
// slash. `--` ends the options. A one-letter alias takes one dash.

#ifndef QLORA_RUNTIME_OPTIONS_COMMANDLINE_H
#define QLORA_RUNTIME_OPTIONS_COMMANDLINE_H

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Options/OptionTable.h"
#include "runtime/Options/Options.h"

namespace qlora {

/// A section of --help-all: the options of some scopes.
struct HelpSection {
  std::span<const OptionRow> rows;
  std::vector<OptionScope> scopes; ///< empty: all scopes
  std::string_view heading; ///< title of the section; empty: one per group
};

struct Tool {
  std::string_view version = {}; ///< text of --version
  /// "usage: tool INPUT [options]", and a description of the tool.
  std::string_view usage = {};
  std::string_view input = {}; ///< name of the input: "MODEL.mlir"
  std::vector<std::string_view> common = {}; ///< options of --help, in order
  std::string_view example = {};             ///< last lines of --help
  std::vector<HelpSection> sections = {};    ///< sections of --help-all
  std::string_view footer = {};              ///< last lines of --help-all
  std::vector<std::span<const OptionRow>> tables = {}; ///< the tool's options
  /// Whether another parser accepts a flag of this name (without dashes).
  bool (*isForeign)(const std::string &name) = nullptr;
};

struct CommandLine {
  std::vector<OptionSetting> settings; ///< if an option repeats, the last wins
  std::vector<std::string> rest; ///< arguments that are not options: files
  std::vector<std::string> foreign;    ///< flags for another parser
  std::string answer; ///< text to print before exiting, for --help etc.
};

/// Parses `words`, which are argv without the program's name. Values are not
/// parsed; Options::applySettings does that.
StatusOr<CommandLine> parseCommandLine(std::span<const std::string> words,
                                       const Tool &tool);

/// Returns the input on the command line; fails unless there is exactly one.
StatusOr<std::string> onlyInput(const CommandLine &line, const Tool &tool);

// Texts of --help and --help-all (OptionHelp.cpp), in argparse's layout: all
// options of the tool's tables with all their spellings, within 80 columns.

/// Returns the rows of --help, --help-all and --version, which all tools have.
std::span<const OptionRow> questionTable();

std::string commonHelp(const Tool &tool);
std::string fullHelp(const Tool &tool);

} // namespace qlora

#endif // QLORA_RUNTIME_OPTIONS_COMMANDLINE_H
