// SPDX-License-Identifier: MIT

// Parses `--sweep learning_rate=1e-4,2e-4 lora_r=8,16`: all combinations run.

#ifndef QLORA_RUNTIME_OPTIONS_SWEEPGRID_H
#define QLORA_RUNTIME_OPTIONS_SWEEPGRID_H

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Options/Options.h"

namespace qlora {

/// An option and its values.
struct SweepAxis {
  std::string name;
  std::vector<std::string> values;
};

/// Parses NAME=VALUE,VALUE,..., each value once.
StatusOr<SweepAxis> parseSweepAxis(std::string_view text);
/// Parses the values of --sweep, which was split at all commas: a word with "="
/// begins an axis, and other words are further values of the axis.
StatusOr<std::vector<SweepAxis>> sweepAxes(std::span<const std::string> words);

/// One run: a value of each axis, as NAME=VALUE.
struct SweepPoint {
  std::vector<std::pair<std::string, std::string>> values;

  /// "learning_rate=1e-4,lora_r=8", without slashes; also names the folder.
  std::string name() const;
  /// Returns the values as settings for a tool with these tables. Refuses
  /// options that determine the output folder or the model.
  StatusOr<std::vector<OptionSetting>> settings(OptionTables tables) const;
};

/// Returns every combination; the last axis varies fastest.
std::vector<SweepPoint> sweepPoints(std::span<const SweepAxis> axes);

} // namespace qlora

#endif // QLORA_RUNTIME_OPTIONS_SWEEPGRID_H
