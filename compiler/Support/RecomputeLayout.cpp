// SPDX-License-Identifier: MIT

// Lays out a step with recomputed ops, and counts its live bytes.

#include "compiler/Support/RecomputeLayout.h"

#include <algorithm>
#include <cassert>

using namespace qlora;

/// Alignment of buffers, in bytes.
static constexpr uint64_t kAlignment = 64;
static constexpr int64_t kNever = INT64_MAX;
/// No clone: the end of a list.
static constexpr uint32_t kEnd = UINT32_MAX;

static uint64_t paddedBytes(uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

RecomputeLayout::RecomputeLayout(const RecomputeProblem &problem)
    : problem(problem), heads(problem.ops.size()),
      makers(problem.values.size(), kNoValue), roots(problem.values.size()),
      zones(zonesOf(problem)), isReadByBackward(problem.values.size(), false),
      touches(problem.ops.size()), readers(problem.ops.size()),
      cloneCounts(problem.ops.size()), clonesBefore(problem.ops.size()),
      latest(problem.ops.size(), kEnd) {
  for (uint32_t i = 0; i < problem.ops.size(); ++i) {
    const RecomputeOp &op = problem.ops[i];
    assert((op.isBackward || forwardCount == i) && "forward after backward");
    forwardCount += !op.isBackward;
    for (uint32_t value : op.outputs)
      makers[value] = i;
    heads[i] =
        op.isView && !op.inputs.empty() ? heads[makers[op.inputs.front()]] : i;
  }
  for (uint32_t value = 0; value < roots.size(); ++value) {
    roots[value] = value;
    while (problem.values[roots[value]].partOf != kNoValue)
      roots[value] = problem.values[roots[value]].partOf;
    valueBytes.push_back(paddedBytes(problem.values[value].bytes));
  }
  broughtBy.assign(problem.values.size(), kNoOp);
  standIns.assign(problem.values.size(), kNoValue);
  for (uint32_t i = forwardCount; i < problem.ops.size(); ++i)
    if (uint32_t value = problem.ops[i].standsFor; value != kNoValue)
      broughtBy[roots[value]] = i;
  describeOps();
  describeReaders();
  describeForward();
}

RecomputeLayout::Touch RecomputeLayout::touchOf(uint32_t value) const {
  uint32_t root = roots[value], maker = makers[root];
  const std::vector<uint32_t> &outputs = problem.ops[maker].outputs;
  uint32_t output =
      std::find(outputs.begin(), outputs.end(), root) - outputs.begin();
  return {root, maker, output};
}

void RecomputeLayout::addSource(OpTouches &op, uint32_t value) const {
  const uint32_t until = broughtBy[roots[value]];
  for (Source &known : op.sources)
    if (known.maker == makers[value]) {
      known.until = std::max(known.until, until);
      return;
    }
  op.sources.push_back({makers[value], until});
}

/// Lists the memory that each op reads and writes, without duplicates.
void RecomputeLayout::describeOps() {
  auto add = [&](std::vector<Touch> &list, uint32_t value) {
    Touch touch = touchOf(value);
    for (const Touch &known : list)
      if (known.root == touch.root)
        return;
    list.push_back(touch);
  };
  auto find = [&](const std::vector<Touch> &list, uint32_t value) {
    uint32_t index = 0;
    while (list[index].root != roots[value])
      ++index;
    return index;
  };
  for (uint32_t i = 0; i < problem.ops.size(); ++i) {
    OpTouches &op = touches[i];
    for (uint32_t value : problem.ops[i].inputs) {
      add(op.reads, value);
      addSource(op, value);
    }
    for (uint32_t value : problem.ops[i].outputs)
      add(op.writes, value);
    for (RecomputeOp::Tie tie : problem.ops[i].ties)
      op.ties.push_back({find(op.reads, tie.input),
                         find(op.writes, tie.output)});
  }
}

/// Finds where the backward first reads the outputs of each forward op.
void RecomputeLayout::describeReaders() {
  for (uint32_t i = forwardCount; i < problem.ops.size(); ++i) {
    for (uint32_t value : problem.ops[i].inputs)
      isReadByBackward[value] = true;
    for (Source source : touches[i].sources) {
      OpTouches &op = touches[source.maker];
      if (op.first.empty())
        op.first.push_back(i);
      if (op.firstPerZone.empty() || zones[op.firstPerZone.back()] != zones[i])
        op.firstPerZone.push_back(i);
    }
  }
}

/// Lists the forward's moments, which are the same for every choice.
void RecomputeLayout::describeForward() {
  firstForward.assign(problem.values.size(), -1);
  lastForward.assign(problem.values.size(), -1);
  for (uint32_t i = 0; i < forwardCount; ++i) {
    addMoment(i);
    for (size_t t = moments[i].firstTouched; t < touched.size(); ++t) {
      if (firstForward[touched[t]] < 0)
        firstForward[touched[t]] = i;
      lastForward[touched[t]] = i;
    }
  }
  forwardTouched = touched.size();
}

/// Records that a clone placed right before the op `before` reads outputs of
/// `op`, which may have to be recomputed too.
void RecomputeLayout::askFor(uint32_t op, uint32_t before,
                             const Choice &choice) {
  Recompute when = choice[heads[op]];
  if (when == Recompute::Never)
    return;
  for (uint32_t &known : readers[op])
    if (when == Recompute::Once || zones[known] == zones[before]) {
      known = std::min(known, before);
      return;
    }
  readers[op].push_back(before);
}

/// Places the clones of each op before the first readers of its outputs. Starts
/// at the last forward op, because a clone reads outputs of earlier ops.
void RecomputeLayout::placeClones(const Choice &choice) {
  clones.clear();
  std::fill(clonesBefore.begin(), clonesBefore.end(), kEnd);
  std::fill(cloneCounts.begin(), cloneCounts.end(), 0);
  extraSeconds = 0;
  for (uint32_t i = 0; i < forwardCount; ++i) {
    Recompute when = choice[heads[i]];
    readers[i].clear();
    if (when != Recompute::Never)
      readers[i] = when == Recompute::Once ? touches[i].first
                                           : touches[i].firstPerZone;
  }
  uint32_t instances = problem.values.size();
  for (uint32_t i = forwardCount; i-- > 0;) {
    std::sort(readers[i].rbegin(), readers[i].rend());
    cloneCounts[i] = readers[i].size();
    for (uint32_t before : readers[i]) {
      extraSeconds += problem.ops[i].seconds;
      clones.push_back({i, before, instances, clonesBefore[before]});
      clonesBefore[before] = clones.size() - 1;
      instances += problem.ops[i].outputs.size();
      for (Source source : touches[i].sources)
        if (before <= source.until)
          askFor(source.maker, before, choice);
    }
  }
}

/// Adds a moment for an op. The instance of each value that the op touches is
/// the copy brought back from the host if there is one, else an output of the
/// latest clone if there is one, else the value itself.
void RecomputeLayout::addMoment(uint32_t op) {
  const OpTouches &of = touches[op];
  size_t first = touched.size();
  moments.push_back({op, uint32_t(first)});
  touched.resize(first + of.reads.size() + of.writes.size());
  uint32_t *next = touched.data() + first;
  auto add = [&](const Touch &touch) {
    uint32_t clone = latest[touch.maker], standIn = standIns[touch.root];
    *next++ = standIn != kNoValue ? standIn
              : clone == kEnd     ? touch.root
                                  : clone + touch.output;
  };
  std::for_each(of.reads.begin(), of.reads.end(), add);
  std::for_each(of.writes.begin(), of.writes.end(), add);
}

void RecomputeLayout::findLives() {
  size_t values = problem.values.size();
  bytes = valueBytes;
  for (const Clone &clone : clones)
    for (uint32_t value : problem.ops[clone.op].outputs)
      bytes.push_back(valueBytes[value]);
  moments.resize(forwardCount);
  touched.resize(forwardTouched);
  std::fill(latest.begin(), latest.end(), kEnd);
  std::fill(standIns.begin(), standIns.end(), kNoValue);
  for (uint32_t i = forwardCount; i < problem.ops.size(); ++i) {
    for (uint32_t c = clonesBefore[i]; c != kEnd; c = clones[c].next) {
      latest[clones[c].op] = clones[c].firstInstance;
      addMoment(clones[c].op);
    }
    addMoment(i);
    if (uint32_t value = problem.ops[i].standsFor; value != kNoValue)
      standIns[roots[value]] = problem.ops[i].outputs.front();
  }
  firstBackward.assign(values, kNever);
  lastMoment = lastForward;
  lastMoment.resize(bytes.size(), -1);
  for (size_t m = forwardCount, t = forwardTouched; m < moments.size(); ++m) {
    size_t end = m + 1 < moments.size() ? moments[m + 1].firstTouched
                                        : touched.size();
    for (; t < end; ++t) {
      uint32_t memory = touched[t];
      lastMoment[memory] = m;
      if (memory < values && firstBackward[memory] == kNever)
        firstBackward[memory] = m;
    }
  }
}

/// Hands the memory of operands that die at moment `m` to the results that are
/// tied to them.
void RecomputeLayout::handOver(uint32_t m) {
  const OpTouches &op = touches[moments[m].op];
  const uint32_t *reads = touched.data() + moments[m].firstTouched;
  const uint32_t *writes = reads + op.reads.size();
  for (auto [read, write] : op.ties) {
    uint32_t from = reads[read], to = writes[write];
    if (lastMoment[from] != int64_t(m) || !held[from] || held[to])
      continue;
    held[from] = false;
    held[to] = true;
  }
}

/// Counts the live bytes at each moment. Stops once more than `most` are alive.
void RecomputeLayout::countBytes(uint64_t budget, uint64_t most) {
  held.assign(bytes.size(), 0);
  peak = 0, peakMoment = 0, peakCount = 0, excessBytes = 0;
  uint64_t live = 0;
  for (size_t m = 0; m < moments.size() && peak <= most; ++m) {
    const Moment &moment = moments[m];
    const uint32_t *first = touched.data() + moment.firstTouched;
    const uint32_t *writes = first + touches[moment.op].reads.size();
    const uint32_t *end = writes + touches[moment.op].writes.size();
    handOver(m);
    for (const uint32_t *memory = writes; memory != end; ++memory)
      if (!held[*memory]) {
        held[*memory] = true;
        live += bytes[*memory];
      }
    if (live > peak)
      peak = live, peakMoment = m, peakCount = 0;
    peakCount += live == peak;
    excessBytes += live > budget ? live - budget : 0;
    for (const uint32_t *memory = first; memory != end; ++memory)
      if (held[*memory] && lastMoment[*memory] == int64_t(m)) {
        held[*memory] = false;
        live -= bytes[*memory];
      }
  }
}

void RecomputeLayout::evaluate(const Choice &choice, uint64_t budget) {
  placeClones(choice);
  findLives();
  countBytes(budget, UINT64_MAX);
}

bool RecomputeLayout::evaluateWithin(const Choice &choice, uint64_t budget) {
  placeClones(choice);
  findLives();
  countBytes(budget, budget);
  return peak <= budget;
}

RecomputePlan RecomputeLayout::plan() const {
  RecomputePlan plan;
  plan.before.resize(problem.ops.size());
  for (auto clone = clones.rbegin(); clone != clones.rend(); ++clone)
    plan.before[clone->op].push_back(clone->before);
  plan.peakBytes = peak;
  plan.seconds = extraSeconds;
  return plan;
}

uint64_t RecomputeLayout::leastPeak() const {
  uint64_t least = 0;
  for (const OpTouches &op : touches) {
    uint64_t read = 0;
    for (const Touch &touch : op.reads)
      read += valueBytes[touch.root];
    least = std::max(least, read);
  }
  return least;
}

bool RecomputeLayout::livesAtPeak(uint32_t value) const {
  uint32_t root = roots[value];
  return firstForward[root] <= peakMoment && peakMoment <= lastMoment[root];
}

bool RecomputeLayout::waitsAtPeak(uint32_t value) const {
  uint32_t root = roots[value];
  return lastForward[root] < peakMoment && peakMoment < firstBackward[root] &&
         firstBackward[root] != kNever;
}
