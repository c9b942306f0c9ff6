// SPDX-License-Identifier: MIT

// Finds the model, the adapters and the program that a command which generates
// (generate, chat, serve, eval) names with its first word and --adapter.

#ifndef QLORA_TOOLS_QLORA_GENERATIONSOURCE_H
#define QLORA_TOOLS_QLORA_GENERATIONSOURCE_H

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Options/Options.h"
#include "runtime/Session/AdapterChoice.h"

namespace qlora {

/// The value of --adapter for the base alone.
inline constexpr const char *kNoAdapter = "none";

/// What generates: a program, or a model that is compiled with `defaults`.
struct GenerationSource {
  std::string program;
  std::string model;        ///< folder or hub name; empty: that of the program
  std::vector<NamedAdapter> adapters; ///< empty: none is named
  bool isBaseOnly = false; ///< --adapter none
  /// Whether each row chooses one of the adapters, which are plain LoRA. Else
  /// there is at most one adapter.
  bool isChoice = false;
  std::string run; ///< output folder whose base is used; empty: no training's
  std::vector<OptionSetting> defaults;

  /// The folder of the first adapter; empty: none is named.
  std::string adapter() const {
    return adapters.empty() ? std::string() : adapters.front().folder;
  }
  bool usesAdapter() const { return !adapters.empty() && !isBaseOnly; }
};

/// Resolves the first word and the values of --adapter. `given`: options of the
/// command line. Prints warnings.
StatusOr<GenerationSource> findSource(const std::string &word,
                                      std::span<const OptionSetting> given);

/// Whether the folder, which may be empty, has the file.
bool hasFile(const std::string &folder, const char *name);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_GENERATIONSOURCE_H
