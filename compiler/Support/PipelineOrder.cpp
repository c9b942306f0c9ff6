// SPDX-License-Identifier: MIT

// Simulates all stages to find the order of their computations and transfers.

#include "compiler/Support/PipelineOrder.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <tuple>

namespace qlora {

namespace {
/// The forward or the backward of a chunk in one part (virtual stage).
struct Unit {
  bool isBackward;
  int64_t chunk, part;
};

/// A simulated run of all stages.
class Run {
public:
  explicit Run(const PipelineForm &form);
  std::vector<PipelineTurn> turnsOf(int64_t stage) const;

private:
  struct Stage {
    std::vector<Unit> units;
    size_t done = 0;
    int64_t free = 0; ///< time when the stage is idle again
  };
  /// A finished unit, or the transfer of its result to another stage.
  struct Event {
    int64_t time; ///< when the unit is done
    bool isTransfer;
    int64_t stage;
    Unit unit;
    auto key() const {
      return std::tuple(time, isTransfer, -stage); // last stages first
    }
  };

  int64_t partOfAll(int64_t stage, const Unit &unit) const {
    return unit.part * form.stages + stage;
  }
  int64_t &endOf(bool isBackward, int64_t chunk, int64_t part) {
    return ends[(chunk * parts + part) * 2 + isBackward];
  }
  std::optional<int64_t> readyAt(int64_t stage, const Unit &unit);
  bool advance(int64_t stage);
  std::optional<PipelineTurn> turnOf(const Event &event, int64_t stage) const;

  static constexpr int64_t kNever = -1;
  const PipelineForm form;
  const int64_t parts; ///< total over all stages
  std::vector<Stage> stages;
  std::vector<int64_t> ends; ///< end time per unit, or kNever
  std::vector<Event> events;
};
} // namespace

/// Returns the forwards of a stage in order. A stage with several parts runs
/// its first part for as many chunks as there are stages, then its next part
/// for the same chunks. By then the first chunk has passed through all stages.
static std::vector<Unit> forwardsOf(const PipelineForm &form) {
  const int64_t run = form.parts == 1 ? form.chunks : form.stages;
  std::vector<Unit> units;
  for (int64_t first = 0; first < form.chunks; first += run)
    for (int64_t part = 0; part < form.parts; ++part)
      for (int64_t chunk = first; chunk < first + run; ++chunk)
        units.push_back({false, chunk, part});
  return units;
}

/// Returns the number of forwards before the first backward.
static int64_t forwardsAhead(const PipelineForm &form, int64_t stage) {
  const int64_t all = form.chunks * form.parts;
  if (form.allForwardsFirst)
    return all;
  const int64_t behind = form.stages - 1 - stage;
  return std::min(all, form.parts == 1
                           ? behind
                           : 2 * behind + (form.parts - 1) * form.stages);
}

static std::vector<Unit> unitsOf(const PipelineForm &form, int64_t stage) {
  const std::vector<Unit> forwards = forwardsOf(form);
  if (!form.hasBackward)
    return forwards;
  const size_t ahead = static_cast<size_t>(forwardsAhead(form, stage));
  std::vector<Unit> units;
  for (size_t turn = 0; turn < forwards.size() + ahead; ++turn) {
    if (turn < forwards.size())
      units.push_back(forwards[turn]);
    if (turn >= ahead) {
      const Unit &forward = forwards[turn - ahead];
      units.push_back({true, forward.chunk, form.parts - 1 - forward.part});
    }
  }
  return units;
}

Run::Run(const PipelineForm &form)
    : form(form), parts(form.stages * form.parts),
      ends(static_cast<size_t>(form.chunks * parts * 2), kNever) {
  assert((form.parts == 1 || form.chunks % form.stages == 0) &&
         "chunks that the stages do not divide");
  for (int64_t stage = 0; stage < form.stages; ++stage)
    stages.push_back({unitsOf(form, stage)});
  for (bool goesOn = true; goesOn;) {
    goesOn = false;
    for (int64_t stage = 0; stage < form.stages; ++stage)
      goesOn |= advance(stage);
  }
  assert(std::ranges::all_of(stages, [](const Stage &stage) {
           return stage.done == stage.units.size();
         }) && "stages that wait for each other");
  std::ranges::stable_sort(events, {}, &Event::key);
}

/// Returns when the unit's input is available, or nullopt if not yet known.
std::optional<int64_t> Run::readyAt(int64_t stage, const Unit &unit) {
  const int64_t part = partOfAll(stage, unit);
  int64_t before = 0;
  if (!unit.isBackward)
    before = part == 0 ? 0 : endOf(false, unit.chunk, part - 1);
  else if (part + 1 < parts)
    before = endOf(true, unit.chunk, part + 1);
  return before == kNever ? std::nullopt : std::optional(before);
}

/// Runs the next unit of a stage. Returns false if its input is not available
/// yet, or if no unit is left.
bool Run::advance(int64_t stage) {
  Stage &at = stages[stage];
  if (at.done == at.units.size())
    return false;
  const Unit unit = at.units[at.done];
  const std::optional<int64_t> ready = readyAt(stage, unit);
  if (!ready)
    return false;
  at.free = std::max(at.free, *ready) + (unit.isBackward ? 2 : 1);
  ++at.done;
  const int64_t part = partOfAll(stage, unit);
  endOf(unit.isBackward, unit.chunk, part) = at.free;
  events.push_back({at.free, false, stage, unit});
  if (unit.isBackward ? part > 0 : part + 1 < parts)
    events.push_back({at.free, true, stage, unit});
  return true;
}

/// Returns the turn of `stage` in the event, or nullopt if it is not involved.
std::optional<PipelineTurn> Run::turnOf(const Event &event,
                                        int64_t stage) const {
  using Kind = PipelineTurn::Kind;
  const Unit &unit = event.unit;
  if (event.stage == stage)
    return PipelineTurn{event.isTransfer ? Kind::kSend : Kind::kCompute,
                        unit.isBackward, unit.chunk, unit.part};
  const int64_t to = partOfAll(event.stage, unit) + (unit.isBackward ? -1 : 1);
  if (!event.isTransfer || to % form.stages != stage)
    return std::nullopt;
  return PipelineTurn{Kind::kReceive, unit.isBackward, unit.chunk,
                      to / form.stages};
}

std::vector<PipelineTurn> Run::turnsOf(int64_t stage) const {
  std::vector<PipelineTurn> turns;
  for (const Event &event : events)
    if (const std::optional<PipelineTurn> turn = turnOf(event, stage))
      turns.push_back(*turn);
  return turns;
}

std::vector<PipelineTurn> pipelineOrder(const PipelineForm &form,
                                        int64_t stage) {
  return Run(form).turnsOf(stage);
}

int64_t chunksInFlight(const PipelineForm &form, int64_t stage) {
  if (!form.hasBackward)
    return 1;
  const int64_t units = std::min(form.chunks * form.parts,
                                 forwardsAhead(form, stage) + 1);
  return (units + form.parts - 1) / form.parts;
}

} // namespace qlora
