// SPDX-License-Identifier: MIT

// tp shards in the parameter table: valid entries, and errors for wrong ones.

#include "runtime/Kernels/Math/Stored.h"
#include "runtime/Module/ParameterCounts.h"

#include "tests/runtime/Module/RefusedTables.h"

namespace qlora {
namespace {

/// Makes the first weight a tp shard: the first half of the rows of an NF4
/// weight with blocks of 64 and double quantization.
void makeSlice(DemoTables &t) {
  qlora_parameter &p = t.parameters[0];
  t.header.mesh.tp = 2;
  p.quantization = QLORA_QUANTIZATION_ON_LOAD;
  p.dtype = p.format = QLORA_DTYPE_NF4;
  p.block = 64;
  p.double_quant = 2;
  p.slices = 2;
  p.segments = 1;
  p.first_segment = static_cast<uint32_t>(t.constants.size());
  t.constants.push_back(2 * p.shape[0]);
  p.bytes = static_cast<uint64_t>(
      StoredLayout::of(QLORA_DTYPE_NF4, p.shape[0] * p.shape[1], 64, false)
          .bytes);
  t.arenas[kDemoFrozen].bytes = p.bytes;
  t.operands.clear();
  t.commands.clear();
  t.entries.clear();
}

TEST(ParameterSlices, AreRefused) {
  EXPECT_EQ(errorAfter(makeSlice), "");
  EXPECT_REFUSED(makeSlice(t); t.parameters[0].double_quant = 1,
                               "nf4 with double_quant 1 and 2 slices");
  EXPECT_REFUSED(makeSlice(t); t.parameters[0].double_quant = 3,
                               "nf4 with double_quant 3 and 2 slices");
  EXPECT_REFUSED(makeSlice(t); t.parameters[0].slices = 0,
                               "segments, but no slices");
  EXPECT_REFUSED(makeSlice(t); t.parameters[0].piece = 64; t.header.mesh.tp = 1;
                 t.header.mesh.ep = 2, "2 slices of 1 segments in dimension 0");
  EXPECT_REFUSED(makeSlice(t); t.parameters[0].slices = 0;
                 t.parameters[0].segments = t.parameters[0].first_segment = 0;
                 t.parameters[0].slice_dimension = 0,
                 "nf4 with double_quant 2 and 0 slices");
  EXPECT_REFUSED(makeSlice(t); t.parameters[0].format = QLORA_DTYPE_MXFP4;
                 t.parameters[0].dtype = QLORA_DTYPE_MXFP4;
                 t.parameters[0].block = 32,
                 "mxfp4 with double_quant 2 and 2 slices");
  EXPECT_REFUSED(makeSlice(t);
                 t.header.mesh.tp = 4, "2 slices of 1 segments in dimension 0");
  EXPECT_REFUSED(makeSlice(t); t.parameters[0].slice_dimension = 2,
                               "2 slices of 1 segments in dimension 2");
  EXPECT_REFUSED(makeSlice(t); t.constants.back() -= 2, "do not cover 1 of 4");
  EXPECT_REFUSED(makeSlice(t);
                 t.constants.back() += 1, "a segment of 9 in 2 slices");
  EXPECT_REFUSED(makeSlice(t); t.parameters[0].parts = 3, "3 parts, but");
  EXPECT_EQ(errorAfter([](DemoTables &t) {
              makeSlice(t);
              t.parameters[0].parts = 8; // divides the unsharded rows
            }),
            "");
}

TEST(ParameterSlices, CountAsTheWhole) {
  DemoTables tables;
  ParameterCounts counts;
  counts.add(tables.parameters[0]);
  makeSlice(tables);
  ParameterCounts sliced;
  sliced.add(tables.parameters[0]);
  EXPECT_EQ(sliced.base, 2 * counts.base);
}

} // namespace
} // namespace qlora
