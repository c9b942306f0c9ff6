// SPDX-License-Identifier: MIT

// Counts the pages that a run's entries touch, and no other pages. Tests with
// the variants of UnigramModule.c, lengths 4 and 8, in arenas of many pages.

#include "runtime/Predict/ResidentMemoryEstimate.h"

#include <gtest/gtest.h>

using namespace qlora;

namespace {

constexpr uint64_t kPage = ResidentMemoryEstimate::kPageBytes;

/// A schedule of micro-batches with the given lengths, in order.
class LengthsAlone final : public Schedule {
public:
  explicit LengthsAlone(std::vector<int64_t> lengths)
      : lengths(std::move(lengths)) {}
  int64_t count() const override {
    return static_cast<int64_t>(lengths.size());
  }

private:
  BatchLayout smallestAt(int64_t step, int64_t index,
                         const StepShape &shape) override {
    return smallestInOrder((step * shape.count() + index) % count());
  }
  BatchLayout smallestInOrder(int64_t number) override {
    return {{2, number < count() ? lengths[number] : 4}, {}};
  }

  std::vector<int64_t> lengths;
};

/// The module with an INPUT arena of 100.5 pages, numbered from 0. Training
/// kernels access pages 0 and 1 for length 4, and pages 10 to 30 for length 8.
/// Evaluation kernels access page 50 for length 4, and page 99 to the end for
/// length 8. Bindings are in page 0.
class ResidentMemoryEstimateTest : public testing::Test {
protected:
  void SetUp() override {
    auto opened = LoadedModule::open(QLORA_UNIGRAM_MODULE);
    ASSERT_TRUE(opened.isOk()) << opened.status().message();
    source.emplace(std::move(opened).value());
    arenas.assign(source->arenas().begin(), source->arenas().end());
    operands.assign(source->operands().begin(), source->operands().end());
    table = source->table();
    const uint32_t input = *source->arena(QLORA_ARENA_INPUT);
    arenas[input].bytes = 100 * kPage + kPage / 2;
    const auto see = [&](size_t operand, uint64_t offset, uint64_t bytes) {
      ASSERT_EQ(operands[operand].arena, input);
      operands[operand].offset = offset;
      operands[operand].bytes = bytes;
    };
    see(0, kPage - 4, 8);
    see(8, 10 * kPage, 21 * kPage);
    see(16, 50 * kPage + 4, kPage - 4);
    see(23, 99 * kPage, kPage + 4);
    table.arenas = arenas.data();
    table.operands = operands.data();
    auto changed = LoadedModule::fromTable(table, "pages");
    ASSERT_TRUE(changed.isOk()) << changed.status().message();
    module.emplace(std::move(changed).value());
  }

  /// Bytes of frozen weights and the adapter, which are filled when weights are
  /// read.
  static constexpr uint64_t kFilled = 64 + 128;
  /// Bytes that training touches: gradient, two moments, results.
  static constexpr uint64_t kTrained = 136 + 2 * 128 + 76;

  std::optional<LoadedModule> source, module;
  qlora_module table{};
  std::vector<qlora_arena> arenas;
  std::vector<qlora_operand> operands;
};

} // namespace

TEST_F(ResidentMemoryEstimateTest, NothingRunIsWhatIsFilled) {
  ResidentMemoryEstimate touched(*module, 0);
  EXPECT_EQ(touched.bytes(), kFilled);
  LengthsAlone data({4, 8});
  touched.addTraining(data, {1, 1}, 0);
  EXPECT_EQ(touched.bytes(), kFilled);
}

TEST_F(ResidentMemoryEstimateTest, TrainingCountsTheLengthsOfItsSteps) {
  LengthsAlone data({4, 4, 8});
  ResidentMemoryEstimate two(*module, 0), three(*module, 0);
  two.addTraining(data, {1, 1}, 2);
  EXPECT_EQ(two.bytes(), kFilled + kTrained + 2 * kPage);
  three.addTraining(data, {1, 1}, 3);
  EXPECT_EQ(three.bytes(), kFilled + kTrained + (2 + 21) * kPage);
}

TEST_F(ResidentMemoryEstimateTest, ARankCountsItsOwn) {
  LengthsAlone data({4, 8});
  ResidentMemoryEstimate first(*module, 0), second(*module, 1);
  first.addTraining(data, {1, 2}, 5);
  second.addTraining(data, {1, 2}, 5);
  EXPECT_EQ(first.bytes(), kFilled + kTrained + 2 * kPage);
  EXPECT_EQ(second.bytes(), kFilled + kTrained + (1 + 21) * kPage);
}

TEST_F(ResidentMemoryEstimateTest, EvaluationHasEntriesOfItsOwn) {
  LengthsAlone shorter({4, 4}), both({4, 8});
  ResidentMemoryEstimate touched(*module, 0);
  touched.addEvaluation(shorter, {});
  EXPECT_EQ(touched.bytes(), kFilled + 76 + 2 * kPage); // 0 and 50
  // The arena ends with half a page, so pages 99 to the end are 1.5 pages.
  touched.addEvaluation(both, {});
  EXPECT_EQ(touched.bytes(), kFilled + 76 + 3 * kPage + kPage / 2);
}

TEST_F(ResidentMemoryEstimateTest, AVeryLongRunMayNeedAll) {
  LengthsAlone data({4});
  const int64_t most = ResidentMemoryEstimate::kWalkedMicroBatches;
  ResidentMemoryEstimate walked(*module, 0), assumed(*module, 0);
  walked.addTraining(data, {2, 2}, most / 4);
  EXPECT_EQ(walked.bytes(), kFilled + kTrained + 2 * kPage);
  assumed.addTraining(data, {2, 2}, most / 4 + 1);
  EXPECT_EQ(assumed.bytes(), kFilled + kTrained + (2 + 21) * kPage);
}
