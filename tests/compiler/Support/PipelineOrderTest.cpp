// SPDX-License-Identifier: MIT

// Pipeline orders: exact orders for small pipelines. For larger pipelines,
// every send has a receive, no stage deadlocks, and no stage stores more chunks
// than chunksInFlight().

#include "compiler/Support/PipelineOrder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

namespace qlora {
namespace {

using Kind = PipelineTurn::Kind;

/// Returns a string per turn: F (forward) or B (backward), the chunk, and one '
/// per part index. The prefix < means receive, and > means send.
std::string textOf(const std::vector<PipelineTurn> &turns) {
  std::string text;
  for (const PipelineTurn &turn : turns) {
    text += text.empty() ? "" : " ";
    text += turn.kind == Kind::kReceive ? "<"
            : turn.kind == Kind::kSend  ? ">"
                                        : "";
    text += turn.isBackward ? 'B' : 'F';
    text += std::to_string(turn.chunk);
    text += std::string(static_cast<size_t>(turn.part), '\'');
  }
  return text;
}

TEST(PipelineOrder, OneForwardOneBackward) {
  const PipelineForm form = {2, 1, 3};
  EXPECT_EQ(textOf(pipelineOrder(form, 0)),
            "F0 >F0 F1 >F1 <B0 B0 F2 <B1 >F2 B1 <B2 B2");
  EXPECT_EQ(textOf(pipelineOrder(form, 1)),
            "<F0 F0 <F1 B0 >B0 F1 B1 >B1 <F2 F2 B2 >B2");
}

TEST(PipelineOrder, AllForwardsFirst) {
  const PipelineForm form = {2, 1, 2, true};
  EXPECT_EQ(textOf(pipelineOrder(form, 0)), "F0 >F0 F1 >F1 <B0 B0 <B1 B1");
}

TEST(PipelineOrder, AnEvaluationHasNoBackward) {
  const PipelineForm form = {2, 2, 2, false, false};
  EXPECT_EQ(textOf(pipelineOrder(form, 0)),
            "F0 >F0 F1 <F0' >F1 F0' <F1' >F0' F1' >F1'");
}

/// The turns of the last of two stages, each with two virtual stages (parts).
/// Both chunks pass part 0 before the first chunk reaches part 1.
TEST(PipelineOrder, PartsTakeTurns) {
  const PipelineForm form = {2, 2, 2};
  EXPECT_EQ(textOf(pipelineOrder(form, 1)),
            "<F0 F0 >F0 <F1 F1 >F1 <F0' F0' <F1' B0' >B0' F1' <B0 B1' >B1' B0 "
            ">B0 <B1 B1 >B1");
}

/// Simulates all stages: a sender waits until the other stage receives, and
/// each turn must find its inputs.
class Walk {
public:
  explicit Walk(const PipelineForm &form) : form(form) {
    for (int64_t stage = 0; stage < form.stages; ++stage)
      orders.push_back(pipelineOrder(form, stage));
    at.resize(orders.size());
    held.resize(orders.size());
    most.resize(orders.size());
    for (bool goesOn = true; goesOn;) {
      goesOn = false;
      for (size_t stage = 0; stage < orders.size(); ++stage)
        goesOn |= step(stage);
    }
  }

  bool isDone() const {
    for (size_t stage = 0; stage < orders.size(); ++stage)
      if (at[stage] < orders[stage].size())
        return false;
    return true;
  }
  int64_t mostHeld(size_t stage) const { return most[stage]; }

private:
  /// A value received by a part. Parts are numbered over all stages.
  using Arrival = std::tuple<bool, int64_t, int64_t>;

  int64_t partOfAll(size_t stage, const PipelineTurn &turn) const {
    return turn.part * form.stages + static_cast<int64_t>(stage);
  }
  bool compute(size_t stage, const PipelineTurn &turn) {
    const int64_t part = partOfAll(stage, turn);
    const int64_t last = form.stages * form.parts - 1;
    if (turn.isBackward ? part < last : part > 0)
      EXPECT_TRUE(arrived.count({turn.isBackward, turn.chunk, part}));
    held[stage] += turn.isBackward ? -1 : 1;
    most[stage] = std::max(most[stage], held[stage]);
    return true;
  }
  bool send(size_t stage, const PipelineTurn &turn) {
    const int64_t to = partOfAll(stage, turn) + (turn.isBackward ? -1 : 1);
    const auto other = static_cast<size_t>(to % form.stages);
    const PipelineTurn wanted = {Kind::kReceive, turn.isBackward, turn.chunk,
                                 to / form.stages};
    if (at[other] == orders[other].size() ||
        !(orders[other][at[other]] == wanted))
      return false;
    ++at[other];
    arrived[{turn.isBackward, turn.chunk, to}] = true;
    return true;
  }
  bool step(size_t stage) {
    if (at[stage] == orders[stage].size())
      return false;
    const PipelineTurn &turn = orders[stage][at[stage]];
    const bool isDone = turn.kind == Kind::kCompute ? compute(stage, turn)
                        : turn.kind == Kind::kSend  ? send(stage, turn)
                                                    : false;
    at[stage] += isDone;
    return isDone;
  }

  const PipelineForm form;
  std::vector<std::vector<PipelineTurn>> orders;
  std::vector<size_t> at;
  std::vector<int64_t> held, most;
  std::map<Arrival, bool> arrived;
};

TEST(PipelineOrder, NobodyWaitsForEver) {
  for (int64_t stages = 2; stages <= 6; ++stages)
    for (int64_t parts = 1; parts <= 4; ++parts)
      for (int64_t chunks = 1; chunks <= 12; ++chunks)
        for (bool allForwardsFirst : {false, true}) {
          if (parts > 1 && chunks % stages != 0)
            continue;
          const PipelineForm form = {stages, parts, chunks, allForwardsFirst};
          SCOPED_TRACE(std::to_string(stages) + " stages, " +
                       std::to_string(parts) + " parts, " +
                       std::to_string(chunks) + " chunks");
          const Walk walk(form);
          EXPECT_TRUE(walk.isDone());
          for (int64_t stage = 0; stage < stages; ++stage) {
            const int64_t held = walk.mostHeld(static_cast<size_t>(stage));
            EXPECT_EQ((held + parts - 1) / parts, chunksInFlight(form, stage));
          }
        }
}

} // namespace
} // namespace qlora
