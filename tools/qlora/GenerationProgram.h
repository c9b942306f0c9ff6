// SPDX-License-Identifier: MIT

// What the commands that generate (generate, chat, serve, eval) share: their
// options, the search for model and adapter, and the program that generates.
//
//   QLORA_ASSIGN_OR_RETURN(const GenerationCommand command,
//                          GenerationCommand::parse(words, tool));
//   QLORA_ASSIGN_OR_RETURN(const GenerationProgram program,
//                          findGenerationProgram(command));
//   ToolCommand answer{"qlora-data", {"generate", ...}};
//   ... answer.arguments += program.dataFlags
//   return becomeAnswer(program, answer, isDryRun);

#ifndef QLORA_TOOLS_QLORA_GENERATIONPROGRAM_H
#define QLORA_TOOLS_QLORA_GENERATIONPROGRAM_H

#include <span>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Options/CommandLine.h"
#include "tools/qlora/Programs.h"
#include "tools/qlora/Tools.h"

namespace qlora {

/// The row --adapter.
std::span<const OptionRow> adapterRows();

/// Rows that decide how tokens are chosen and where an answer ends.
std::span<const OptionRow> samplingRows();

/// The row --gpus, of commands whose rows several ranks share.
std::span<const OptionRow> rankRows();

/// Adds the tables of `own` options, and of all options that find, compile and
/// run the program, and makes a section of help for each. `own` may have
/// rankRows().
void addGenerationTables(Tool &tool,
                         std::vector<std::span<const OptionRow>> own);

/// A command line, and its options by table. The first word is a model.
struct GenerationCommand {
  CommandLine line;
  Options own;     ///< of the command's own rows
  Options adapter{adapterRows()};
  Options sampling{samplingRows()};
  Options ranks{rankRows()};
  Options run;     ///< of the option table
  bool isDryRun = false;
  int64_t batch = 8; ///< default of --generation-batch

  /// `own`: the command's own rows. If `line.answer` is not empty, the command
  /// only prints it.
  static StatusOr<GenerationCommand> parse(std::span<const std::string> words,
                                           const Tool &tool,
                                           std::span<const OptionRow> own);
};

struct GenerationProgram {
  ProgramCommands made;
  Options options; ///< of the program
  bool isCuda = false;
  std::string run;          ///< folder of the training, or empty
  std::string chatTemplate; ///< to use instead of the model's, or empty
  bool rowsChoose = false;  ///< each row chooses an adapter, or the base
  /// qlora-data's flags: --model, --seed, --chat-template, --ranks if there are
  /// several, and those of samplingRows().
  std::vector<std::string> dataFlags;
  std::vector<std::string> engine; ///< qlora-run's command line, of each rank
};

/// Finds the model and the adapter that the first word and --adapter name, and
/// the program for them. Prints notes. Compiles nothing.
StatusOr<GenerationProgram>
findGenerationProgram(const GenerationCommand &command);

/// Compiles the program if it does not exist. Then replaces this process by
/// `answer`, followed by "--" and the engine. Returns only after an error, or
/// with `isDryRun`, which prints the commands.
Status becomeAnswer(const GenerationProgram &program, ToolCommand answer,
                    bool isDryRun);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_GENERATIONPROGRAM_H
