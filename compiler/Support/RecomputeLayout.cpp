// SPDX-License-Identifier: MIT

// Lays out a step with recomputed ops and counts live bytes
// (RecomputeLayout.h).

#include "compiler/Support/RecomputeLayout.h"

#include <algorithm>
#include <cassert>

using namespace qlora;

/// Buffers start at multiples of this.
static constexpr uint64_t kAlignment = 64;

static uint64_t paddedBytes(uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

RecomputeLayout::RecomputeLayout(const RecomputeProblem &problem)
    : problem(problem), heads(problem.ops.size()),
      makers(problem.values.size(), kNoValue), roots(problem.values.size()),
      firstReader(problem.values.size(), kNever) {
  for (uint32_t i = 0; i < problem.ops.size(); ++i) {
    const RecomputeOp &op = problem.ops[i];
    assert((op.isBackward || forwardCount == i) && "forward after backward");
    forwardCount += !op.isBackward;
    for (uint32_t value : op.outputs)
      makers[value] = i;
    for (uint32_t value : op.inputs)
      if (op.isBackward && firstReader[value] == kNever)
        firstReader[value] = i;
    heads[i] = op.isView && !op.inputs.empty()
                   ? heads[makers[op.inputs.front()]]
                   : i;
  }
  for (uint32_t value = 0; value < roots.size(); ++value) {
    roots[value] = value;
    while (problem.values[roots[value]].partOf != kNoValue)
      roots[value] = problem.values[roots[value]].partOf;
  }
}

/// Where each op is computed again: before the first reader of what it makes.
/// Last op first, since a recomputed op is a reader too.
void RecomputeLayout::placeRecomputed(const Keep &keep) {
  before.assign(problem.ops.size(), -1);
  need = firstReader;
  extraSeconds = 0;
  for (uint32_t i = forwardCount; i-- > 0;) {
    if (keep[heads[i]])
      continue;
    const RecomputeOp &op = problem.ops[i];
    int64_t first = kNever;
    for (uint32_t value : op.outputs)
      first = std::min(first, need[value]);
    if (first == kNever)
      continue;
    before[i] = first;
    extraSeconds += op.seconds;
    for (uint32_t value : op.inputs)
      need[value] = std::min(need[value], first);
  }
}

void RecomputeLayout::schedule() {
  moments.clear();
  std::vector<std::vector<uint32_t>> repeated(problem.ops.size());
  for (uint32_t i = 0; i < forwardCount; ++i) {
    moments.push_back({i, true, false});
    if (before[i] >= 0)
      repeated[before[i]].push_back(i);
  }
  for (uint32_t i = forwardCount; i < problem.ops.size(); ++i) {
    for (uint32_t op : repeated[i])
      moments.push_back({op, false, true});
    moments.push_back({i, false, false});
  }
}

uint32_t RecomputeLayout::instance(uint32_t value, bool isForward) const {
  bool isRepeated = !isForward && before[makers[value]] >= 0;
  return isRepeated ? value + problem.values.size() : value;
}

uint32_t RecomputeLayout::rootInstance(uint32_t value, bool isForward) const {
  return instance(roots[value], isForward);
}

void RecomputeLayout::findLives() {
  size_t values = problem.values.size();
  firstMoment.assign(2 * values, -1);
  lastMoment.assign(2 * values, -1);
  lastForward.assign(values, -1);
  firstBackward.assign(values, kNever);
  auto touch = [&](uint32_t root, int64_t moment) {
    if (firstMoment[root] < 0)
      firstMoment[root] = moment;
    lastMoment[root] = moment;
  };
  for (size_t m = 0; m < moments.size(); ++m) {
    const Moment &moment = moments[m];
    const RecomputeOp &op = problem.ops[moment.op];
    for (uint32_t value : op.inputs) {
      uint32_t root = rootInstance(value, moment.isForward);
      touch(root, m);
      if (root >= values)
        continue;
      if (moment.isForward)
        lastForward[root] = m;
      else
        firstBackward[root] = std::min<int64_t>(firstBackward[root], m);
    }
    for (uint32_t value : op.outputs) {
      uint32_t root = rootInstance(value, moment.isForward);
      touch(root, m);
      if (moment.isForward)
        lastForward[root] = m;
    }
  }
}

void RecomputeLayout::countBytes() {
  size_t values = problem.values.size();
  held.assign(2 * values, false);
  peak = 0, peakMoment = 0, peakCount = 0;
  uint64_t live = 0;
  for (size_t m = 0; m < moments.size(); ++m) {
    const Moment &moment = moments[m];
    const RecomputeOp &op = problem.ops[moment.op];
    auto bytesOf = [&](uint32_t root) {
      return paddedBytes(problem.values[root % values].bytes);
    };
    // An operand that ends here and is continued hands its memory over.
    if (op.tied != kNoValue) {
      uint32_t from = rootInstance(op.tied, moment.isForward);
      uint32_t to = rootInstance(op.outputs.front(), moment.isForward);
      if (lastMoment[from] == int64_t(m) && held[from] && !held[to]) {
        held[from] = false;
        held[to] = true;
      }
    }
    for (uint32_t value : op.outputs) {
      uint32_t root = rootInstance(value, moment.isForward);
      if (held[root])
        continue;
      held[root] = true;
      live += bytesOf(root);
    }
    if (live > peak)
      peak = live, peakMoment = m, peakCount = 0;
    peakCount += live == peak;
    auto release = [&](uint32_t value) {
      uint32_t root = rootInstance(value, moment.isForward);
      if (!held[root] || lastMoment[root] != int64_t(m))
        return;
      held[root] = false;
      live -= bytesOf(root);
    };
    for (uint32_t value : op.inputs)
      release(value);
    for (uint32_t value : op.outputs)
      release(value);
  }
}

void RecomputeLayout::evaluate(const Keep &keep) {
  placeRecomputed(keep);
  schedule();
  findLives();
  countBytes();
}

bool RecomputeLayout::livesAtPeak(uint32_t value) const {
  uint32_t root = roots[value];
  return firstMoment[root] <= peakMoment && peakMoment <= lastMoment[root];
}

bool RecomputeLayout::waitsAtPeak(uint32_t value) const {
  uint32_t root = roots[value];
  return lastForward[root] < peakMoment && peakMoment < firstBackward[root] &&
         firstBackward[root] != kNever;
}
