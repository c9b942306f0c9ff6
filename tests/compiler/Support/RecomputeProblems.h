// SPDX-License-Identifier: MIT

// Problems for the tests of the recompute planner, and simple counts of a
// plan's effects.

#ifndef QLORA_TESTS_COMPILER_SUPPORT_RECOMPUTEPROBLEMS_H
#define QLORA_TESTS_COMPILER_SUPPORT_RECOMPUTEPROBLEMS_H

#include <algorithm>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "compiler/Support/RecomputePlanner.h"

namespace qlora {

class ProblemBuilder {
public:
  uint32_t forward(std::vector<uint32_t> inputs, uint64_t bytes,
                   double seconds, int64_t block = -1) {
    return add({inputs, {}, seconds, block, false, false, {}}, bytes);
  }
  uint32_t backward(std::vector<uint32_t> inputs, uint64_t bytes,
                    int64_t block = -1) {
    return add({inputs, {}, 0, block, true, false, {}}, bytes);
  }
  uint32_t view(uint32_t whole, uint64_t bytes) {
    uint32_t part = add({{whole}, {}, 0, -1, false, true, {}}, bytes);
    problem.values[part].partOf = whole;
    return part;
  }
  /// Adds an op that fetches a copy of the value, as from host memory.
  uint32_t fetch(uint32_t original) {
    uint32_t value = backward({}, problem.values[original].bytes);
    problem.ops.back().standsFor = original;
    return value;
  }
  /// Allows the last op to reuse the memory of `value` for its output.
  void tie(uint32_t value) {
    RecomputeOp &op = problem.ops.back();
    op.ties.push_back({value, op.outputs.front()});
  }

  RecomputeProblem problem;

private:
  uint32_t add(RecomputeOp op, uint64_t bytes) {
    uint32_t value = problem.values.size();
    problem.values.push_back({bytes, kNoValue});
    op.outputs.push_back(value);
    problem.ops.push_back(std::move(op));
    return value;
  }
};

/// Returns the peak of live bytes of a plan, by the simplest method: walks all
/// ops and their recomputations, each of which allocates separate memory.
/// Ignores ties.
inline uint64_t plainPeak(const RecomputeProblem &problem,
                   const RecomputePlan &plan) {
  /// A root value, and the op before which it was recomputed; -1: the original.
  using Memory = std::pair<uint32_t, int64_t>;
  auto root = [&](uint32_t value) {
    while (problem.values[value].partOf != kNoValue)
      value = problem.values[value].partOf;
    return value;
  };
  auto makerOf = [&](uint32_t value) {
    for (uint32_t i = 0; i < problem.ops.size(); ++i)
      for (uint32_t output : problem.ops[i].outputs)
        if (output == value)
          return i;
    return kNoValue;
  };
  auto latest = [&](uint32_t value, int64_t at) {
    int64_t clone = -1;
    for (int64_t i = 0; i < at; ++i)
      if (uint32_t original = problem.ops[i].standsFor;
          original != kNoValue && root(original) == root(value))
        return Memory(root(problem.ops[i].outputs.front()), -1);
    for (uint32_t before : plan.before[makerOf(root(value))])
      if (int64_t(before) <= at)
        clone = std::max<int64_t>(clone, before);
    return Memory(root(value), clone);
  };
  std::vector<std::vector<Memory>> lines;
  auto write = [&](uint32_t i, int64_t at) {
    std::vector<Memory> line;
    for (uint32_t value : problem.ops[i].inputs)
      line.push_back(latest(value, at));
    for (uint32_t value : problem.ops[i].outputs)
      line.push_back(latest(value, at));
    lines.push_back(line);
  };
  for (uint32_t i = 0; i < problem.ops.size(); ++i) {
    for (uint32_t j = 0; problem.ops[i].isBackward && j < i; ++j)
      if (std::count(plan.before[j].begin(), plan.before[j].end(), i))
        write(j, i);
    write(i, problem.ops[i].isBackward ? int64_t(i) : -1);
  }
  std::map<Memory, std::pair<size_t, size_t>> lives;
  for (size_t m = 0; m < lines.size(); ++m)
    for (Memory memory : lines[m])
      lives.try_emplace(memory, m, m).first->second.second = m;
  std::vector<uint64_t> live(lines.size(), 0);
  for (auto [memory, life] : lives)
    for (size_t m = life.first; m <= life.second; ++m)
      live[m] += (problem.values[memory.first].bytes + 63) / 64 * 64;
  return *std::max_element(live.begin(), live.end());
}

/// Checks that recomputed values exist when they are read.
inline void expectOrdered(const RecomputeProblem &problem,
                   const RecomputePlan &plan) {
  std::vector<uint32_t> makers(problem.values.size());
  for (uint32_t i = 0; i < problem.ops.size(); ++i)
    for (uint32_t value : problem.ops[i].outputs)
      makers[value] = i;
  for (uint32_t i = 0; i < problem.ops.size(); ++i) {
    std::vector<uint32_t> readers = plan.before[i];
    if (problem.ops[i].isBackward)
      readers.push_back(i);
    for (uint32_t at : readers)
      for (uint32_t value : problem.ops[i].inputs) {
        const std::vector<uint32_t> &clones = plan.before[makers[value]];
        EXPECT_TRUE(clones.empty() || clones.front() <= at);
      }
  }
}

/// Returns `layers` blocks of an expensive linear, a cheap norm and activation.
inline RecomputeProblem layered(int64_t layers, uint64_t bytes) {
  ProblemBuilder builder;
  uint32_t x = builder.forward({}, bytes, 1e-6);
  std::vector<std::vector<uint32_t>> saved;
  for (int64_t layer = 0; layer < layers; ++layer) {
    uint32_t norm = builder.forward({x}, bytes, 1e-6, layer);
    uint32_t up = builder.forward({norm}, 4 * bytes, 1e-3, layer);
    uint32_t act = builder.forward({up}, 4 * bytes, 2e-6, layer);
    uint32_t down = builder.forward({act}, bytes, 1e-3, layer);
    saved.push_back({x, norm, up, act});
    x = builder.forward({x, down}, bytes, 1e-6, layer);
  }
  x = builder.forward({x}, bytes, 1e-6);
  uint32_t gradient = builder.backward({x}, bytes);
  for (int64_t layer = layers; layer-- > 0;) {
    auto &s = saved[layer];
    uint32_t dact = builder.backward({gradient, s[3]}, 4 * bytes, layer);
    uint32_t dup = builder.backward({dact, s[2]}, 4 * bytes, layer);
    uint32_t dnorm = builder.backward({dup, s[1]}, bytes, layer);
    gradient = builder.backward({gradient, dnorm, s[0]}, bytes, layer);
  }
  return builder.problem;
}

/// Returns a random problem. With `fetches`, some values that the backward
/// reads are fetched two ops before their reader.
inline RecomputeProblem randomProblem(std::mt19937 &random, int64_t forwardOps,
                                      bool ties, bool fetches = false) {
  ProblemBuilder builder;
  std::vector<uint32_t> values;
  for (int64_t i = 0; i < forwardOps; ++i) {
    std::vector<uint32_t> inputs;
    for (size_t k = 0; k < std::min<size_t>(values.size(), 1 + random() % 2);
         ++k)
      inputs.push_back(
          values[values.size() - 1 - random() % std::min<size_t>(
                                                    values.size(), 3)]);
    if (!inputs.empty() && random() % 6 == 0) {
      values.push_back(builder.view(inputs[0], 0));
      continue;
    }
    values.push_back(builder.forward(inputs, 64 * (1 + random() % 8),
                                     1 + random() % 20, i / 3));
    if (ties && !inputs.empty() && random() % 3 == 0)
      builder.tie(inputs[0]);
  }
  uint32_t gradient = builder.backward({values.back()}, 64);
  for (int64_t i = forwardOps; i-- > 0;) {
    if (fetches && i >= 2 && random() % 2 &&
        builder.problem.values[values[i - 2]].partOf == kNoValue)
      values[i - 2] = builder.fetch(values[i - 2]);
    std::vector<uint32_t> inputs = {gradient};
    if (random() % 3)
      inputs.push_back(values[i]);
    gradient = builder.backward(inputs, 64 * (1 + random() % 4), i / 3);
  }
  return builder.problem;
}

} // namespace qlora

#endif // QLORA_TESTS_COMPILER_SUPPORT_RECOMPUTEPROBLEMS_H
