// SPDX-License-Identifier: MIT

// Searches for the first value that is not finite.

#include "runtime/Session/NonFinite.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "runtime/Checkpoint/Adapter.h"

namespace qlora {

/// Returns the rows of a micro-batch: "rows 17, 4, 23 and 5 more".
static std::string rowsText(const BatchLayout &layout) {
  constexpr size_t kShown = 8;
  std::vector<int64_t> rows;
  for (const auto &line : layout.lines)
    rows.insert(rows.end(), line.begin(), line.end());
  const size_t shown = std::min(rows.size(), kShown);
  std::string text =
      fmt::format("{} {}", rows.size() == 1 ? "row" : "rows",
                  fmt::join(rows.begin(),
                            rows.begin() + static_cast<int64_t>(shown), ", "));
  if (rows.size() > shown)
    text += fmt::format(" and {} more", rows.size() - shown);
  return text;
}

static const float *firstNonFinite(std::span<const float> values) {
  const auto found = std::ranges::find_if_not(
      values, [](float value) { return std::isfinite(value); });
  return found == values.end() ? nullptr : &*found;
}

/// Describes losses that are not finite. The gradient arena also has the sums
/// of the losses.
static std::vector<std::string>
describeLosses(const LoadedModule &module, const BatchShape &shape,
               std::span<const float> gradient) {
  std::vector<std::string> found;
  const qlora_entry *entry =
      module.entry(QLORA_ENTRY_ACCUMULATE_LAST, shape.batch, shape.length);
  for (const auto &[kind, name] :
       {std::pair(QLORA_RESULT_LOSS_SUM, "the loss"),
        {QLORA_RESULT_ROUTER_LOSS, "the router loss"}}) {
    const qlora_binding *binding =
        entry ? module.binding(*entry, kind) : nullptr;
    if (!binding || binding->arena != module.arena(QLORA_ARENA_GRADIENT))
      continue;
    const float loss = gradient[binding->offset / sizeof(float)];
    if (!std::isfinite(loss))
      found.push_back(fmt::format("{} is {}", name, loss));
  }
  return found;
}

/// Describes the losses and gradients that are not finite; empty if none.
/// `gradient`: the gradient arena after one micro-batch.
static std::string describe(const LoadedModule &module, const BatchShape &shape,
                            std::span<const float> gradient) {
  std::vector<std::string> found = describeLosses(module, shape, gradient);
  for (const qlora_parameter *parameter : trainedParameters(module)) {
    const auto values =
        gradient.subspan(parameter->offset / sizeof(float),
                         arenaBytesOf(*parameter) / sizeof(float));
    if (const float *value = firstNonFinite(values)) {
      found.push_back(fmt::format(
          "the gradient of '{}'{} has {}", parameter->name,
          parameter->piece != 0 ? ", summed over the ranks," : "", *value));
      break;
    }
  }
  return fmt::format("{}", fmt::join(found, ", and "));
}

static Status clearGradient(const Run &run) {
  const std::vector<uint8_t> zeros(run.module.arenaBytes(QLORA_ARENA_GRADIENT));
  return run.device.write(*run.module.arena(QLORA_ARENA_GRADIENT), 0, zeros);
}

/// Returns this rank's first non-finite micro-batch (index in the step; -1:
/// none) and its description. In lockstep, runs all micro-batches, because the
/// other ranks wait in their collectives.
static StatusOr<std::pair<int64_t, std::string>>
findOwn(const Run &run, int64_t step, qlora_step_block block) {
  const uint32_t arena = *run.module.arena(QLORA_ARENA_GRADIENT);
  std::vector<float> gradient(run.module.arenaBytes(QLORA_ARENA_GRADIENT) /
                              sizeof(float));
  std::span<uint8_t> bytes(reinterpret_cast<uint8_t *>(gradient.data()),
                           gradient.size() * sizeof(float));
  MicroBatch batch;
  Schedule &schedule = run.train->schedule();
  std::pair<int64_t, std::string> found(-1, "");
  const auto isSought = [&] {
    return found.first < 0 || run.stepShape.inLockstep;
  };
  const MicroBatchAssignment deal = run.assignmentOf(step);
  const int64_t rank = run.group.dataRank();
  for (int64_t k = 0; k < deal.size(rank) && isSought(); ++k) {
    const int64_t index = deal.number(rank, k);
    QLORA_RETURN_IF_ERROR(clearGradient(run));
    QLORA_RETURN_IF_ERROR(run.train->read(step, index, run.stepShape, batch));
    block.micro_batch = static_cast<uint64_t>(step * run.perStep() + index);
    QLORA_RETURN_IF_ERROR(run.program.accumulate(
        batch, run.train->mostLabels(step, k, run.stepShape), block));
    QLORA_RETURN_IF_ERROR(run.device.read(arena, 0, bytes));
    const BatchLayout layout = schedule.at(step, index, run.stepShape);
    const std::string text = describe(run.module, layout.shape, gradient);
    if (!text.empty() && found.first < 0)
      found = {index, fmt::format("rank {}, micro-batch {} ({}): {}",
                                  run.group.rank(), k, rowsText(layout), text)};
  }
  return found;
}

StatusOr<std::string> findNonFinite(const Run &run, int64_t step,
                                    qlora_step_block block) {
  QLORA_ASSIGN_OR_RETURN(const auto own, findOwn(run, step, block));
  QLORA_RETURN_IF_ERROR(clearGradient(run));
  QLORA_ASSIGN_OR_RETURN(
      const auto all,
      run.group.collectives().allGather(
          own.first < 0 ? "" : fmt::format("{} {}", own.first, own.second)));
  // Choose the first failure in the step's order, on any rank.
  int64_t first = -1;
  std::string text;
  for (const std::string &said : all) {
    if (said.empty())
      continue;
    const int64_t index = std::stoll(said);
    if (first >= 0 && index >= first)
      continue;
    first = index;
    text = said.substr(said.find(' ') + 1);
  }
  return text;
}

} // namespace qlora
