// SPDX-License-Identifier: MIT

// What `--sweep learning_rate=1e-4,2e-4 lora_r=8,16` asks for: a run for each
// combination of values.

#ifndef QLORA_RUNTIME_BASE_SWEEPGRID_H
#define QLORA_RUNTIME_BASE_SWEEPGRID_H

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/Base/Options.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// An option, and the values that it has in turn.
struct SweepAxis {
  std::string name;
  std::vector<std::string> values;
};

/// Of NAME=VALUE,VALUE,..., each value once.
StatusOr<SweepAxis> parseSweepAxis(std::string_view text);
/// Of --sweep as a list option has it, cut at all commas: what has an = begins
/// an axis.
StatusOr<std::vector<SweepAxis>>
sweepAxes(std::span<const std::string> words);

/// One run: a value of each axis, as NAME=VALUE.
struct SweepPoint {
  std::vector<std::pair<std::string, std::string>> values;

  /// "learning_rate=1e-4,lora_r=8", with no slash: of its folder, too.
  std::string name() const;
  /// As if they stood on the command line of a tool with these tables. What
  /// decides where a run writes, or of which model it is, is refused.
  StatusOr<std::vector<OptionSetting>> settings(OptionTables tables) const;
};

/// Every combination; the last axis runs fastest.
std::vector<SweepPoint> sweepPoints(std::span<const SweepAxis> axes);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_SWEEPGRID_H
