// SPDX-License-Identifier: MIT

// Micro-batches of ranks that run the same entries at the same time. All ranks
// have the same shape and label count, and each has the same rows as without
// lockstep.

#include "tests/runtime/Data/DataFiles.h"

#include <algorithm>

using namespace qlora;

/// Returns a micro-batch's tokens without padding.
static Ints tokensOf(const MicroBatch &batch) {
  Ints tokens;
  for (size_t i = 0; i < batch.ids.size(); ++i)
    if (batch.segments[i] != 0)
      tokens.push_back(batch.ids[i]);
  return tokens;
}

/// Expects that all ranks of a lockstep read have one shape, and that `said` is
/// the maximum of their label counts. `read` takes a rank and a shape.
template <typename Read>
static void expectLockstep(const StepShape &alone, const Read &read,
                           std::optional<int64_t> said) {
  StepShape together = alone;
  together.inLockstep = true;
  BatchShape largest;
  int64_t most = 0;
  for (int64_t rank = 0; rank < alone.ranks; ++rank) {
    const MicroBatch batch = read(rank, alone);
    largest = std::max(largest, {batch.batch, batch.length});
    most = std::max(most, batch.labelCount());
  }
  for (int64_t rank = 0; rank < alone.ranks; ++rank) {
    const MicroBatch batch = read(rank, together);
    EXPECT_EQ((BatchShape{batch.batch, batch.length}), largest);
    EXPECT_EQ(tokensOf(batch), tokensOf(read(rank, alone)));
  }
  EXPECT_EQ(said, most);
}

TEST(Dataset, InLockstepRanksHaveTheLargestShape) {
  Ints ids;
  std::vector<int64_t> offsets = {0};
  for (int32_t r = 0; r < 11; ++r) {
    ids.insert(ids.end(), 1 + r * 5 % 8, r + 1);
    offsets.push_back(static_cast<int64_t>(ids.size()));
  }
  const auto rows = writeRows("mixed", ids, ids, offsets);
  const CompiledVariants padded = {2, {2, 4, 8}, 20}, packed = {1, {8}, 20},
                         free = {2, {2, 4, 8}, 20, {2, 4, 8, 16}};
  for (const CompiledVariants &variants : {padded, packed, free})
    for (const StepShape &shape : {StepShape{2, 2}, {1, 3}, {2, 4}}) {
      auto data =
          open(rows, variants, {.seed = 1, .packing = variants.batch == 1});
      StepShape together = shape;
      together.inLockstep = true;
      for (int64_t step = 0; step < 3; ++step)
        for (int64_t k = 0;
             k < data->schedule().microBatches(step, shape) / shape.ranks; ++k)
          expectLockstep(
              shape,
              [&](int64_t rank, const StepShape &as) {
                MicroBatch batch;
                const int64_t index = k * shape.ranks + rank;
                EXPECT_TRUE(data->read(step, index, as, batch).isOk());
                return batch;
              },
              data->mostLabels(step, k, together));
      // In the last round some ranks have no rows.
      const int64_t count = data->schedule().countInOrder();
      for (int64_t first = 0; first < count; first += shape.ranks)
        expectLockstep(
            shape,
            [&](int64_t rank, const StepShape &as) {
              MicroBatch batch;
              EXPECT_TRUE(data->readInOrder(first + rank, batch, as).isOk());
              return batch;
            },
            data->mostLabelsInOrder(first + shape.ranks - 1, together));
      EXPECT_EQ(data->mostLabelsInOrder(0, shape), std::nullopt);
    }
}
