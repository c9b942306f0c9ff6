// SPDX-License-Identifier: MIT

// The cost of a collective depends on which ranks its group has.

#include "compiler/Optimize/OpCost.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Parser/Parser.h"

#include <gtest/gtest.h>

using namespace mlir;
using namespace qlora;

namespace {

/// Returns nodes of eight GPUs: 1 us per collective, 10 GB/s inside a node, 1
/// GB/s between nodes.
DeviceProfile nodesOfEight() {
  DeviceProfile device;
  GpuRates &gpu = device.gpu.emplace();
  gpu.gpusPerNode = 8;
  gpu.nodeLinkGbps = 10;
  gpu.networkGbps = 1;
  gpu.allReduceMicroseconds = 1;
  return device;
}

constexpr double kBytes = 4 * 64 * 64 * sizeof(float);

/// Returns seconds of an all_to_all of kBytes over the four context-parallel
/// ranks of a module with these additional attributes.
double exchangeSeconds(const std::string &attributes) {
  MLIRContext context;
  context.loadDialect<func::FuncDialect, model::ModelDialect>();
  const std::string text =
      "module attributes {model.mesh = #model.mesh<cp = 4" + attributes +
      R"(>} {
    func.func @f(%x: tensor<4x64x64xf32>) {
      %y = model.all_to_all %x {ranks = #model<ranks cp>}
          : (tensor<4x64x64xf32>) -> tensor<4x64x64xf32>
      return
    }
  })";
  OwningOpRef<ModuleOp> module = parseSourceString<ModuleOp>(text, &context);
  double seconds = -1;
  if (module)
    module->walk([&](model::AllToAllOp op) {
      seconds = secondsOf(op, nodesOfEight());
    });
  return seconds;
}

TEST(OpCost, RanksOfAGroupThatAreNeighboursShareANode) {
  EXPECT_DOUBLE_EQ(exchangeSeconds(""), 1e-6 + 0.75 * kBytes / 10e9);
}

/// With eight tensor-parallel ranks in each node, the four ranks of a
/// context-parallel group are on different nodes.
TEST(OpCost, RanksOfAGroupThatAreApartUseTheNetwork) {
  EXPECT_DOUBLE_EQ(exchangeSeconds(", tp = 8"), 3e-6 + 0.75 * kBytes / 1e9);
}

} // namespace
