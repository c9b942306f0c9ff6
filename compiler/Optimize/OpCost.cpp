// SPDX-License-Identifier: MIT

// Computes the cost of MLIR ops (OpCost.h).

#include "compiler/Optimize/OpCost.h"

#include "runtime/Options/GroupSizes.h"
#include "runtime/Predict/CollectiveCost.h"

#include "mlir/IR/IRMapping.h"
#include "mlir/IR/OwningOpRef.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

/// Counts `math` functions per row, except those that take only a few
/// instructions.
static int64_t transcendentalsPerRow(Block &arithmetic) {
  int64_t count = 0;
  for (Operation &inner : arithmetic) {
    if (!isa_and_nonnull<math::MathDialect>(inner.getDialect()) ||
        isa<math::AbsFOp, math::RoundEvenOp>(inner))
      continue;
    auto row = dyn_cast<RankedTensorType>(inner.getResult(0).getType());
    count += row ? row.getNumElements() : 1;
  }
  return count;
}

int64_t qlora::resultBytes(Operation *op) {
  int64_t bytes = 0;
  for (Type type : op->getResultTypes())
    bytes += tensorBytes(cast<RankedTensorType>(type));
  return bytes;
}

Block &qlora::writeArithmetic(RowOp op, Region &region) {
  Block &block = region.emplaceBlock();
  Type number = Float32Type::get(op.getContext());
  Type row = RankedTensorType::get({op.getRowColumns()}, number);
  for (MapAttr map : op.getRowMaps()) {
    bool isNumber =
        map.getKind() == MapKind::Scalar || map.getKind() == MapKind::Global;
    block.addArgument(isNumber ? number : row, op.getLoc());
  }
  OpBuilder builder = OpBuilder::atBlockEnd(&block);
  op.buildRow(builder, block.getArguments());
  return block;
}

static int64_t transcendentalsPerRow(RowOp op) {
  Region region(op);
  return transcendentalsPerRow(writeArithmetic(op, region));
}

static Work rowOpWork(RowOp op) {
  double bytes = 0;
  for (Type type : op->getOperandTypes())
    bytes += tensorBytes(cast<RankedTensorType>(type));
  for (Type type : op->getResultTypes())
    bytes += tensorBytes(cast<RankedTensorType>(type));
  return rowWork(bytes, double(rowCount(op)) * transcendentalsPerRow(op));
}

KernelRequest qlora::kernelRequestOf(LibraryOp op) {
  KernelCall call = op.getKernelCall();
  KernelRequest request;
  request.op = call.op;
  request.constants.assign(call.constants.begin(), call.constants.end());
  for (Value value : call.operands)
    request.dtypes.push_back(
        value ? elementDtype(tensorOf(value).getElementType()) : std::nullopt);
  return request;
}

double qlora::secondsOf(Operation *op, const DeviceProfile &device) {
  if (auto row = dyn_cast<RowOp>(op))
    return secondsOf(rowOpWork(row), device);
  if (auto library = dyn_cast<LibraryOp>(op))
    return secondsOf(kernelRequestOf(library), device);
  // The cost of a collective depends on the bytes of its larger tensor.
  const auto together = [&](qlora_collective kind, Ranks ranks) {
    const int64_t bytes = kind == QLORA_COLLECTIVE_REDUCE_SCATTER
                              ? tensorBytes(tensorOf(op->getOperand(0)))
                              : resultBytes(op);
    const auto group = unsigned(ranks); // equal to enum qlora_group
    auto module = op->getParentOfType<ModuleOp>();
    const GroupSizes groups =
        GroupSizes(meshOf(module)).onAtLeast(runRanksOf(module));
    return collectiveDemand(kind, double(bytes), groups[group],
                            groups.stride(group), device)
        .seconds();
  };
  if (auto gather = dyn_cast<AllGatherOp>(op))
    return together(QLORA_COLLECTIVE_ALL_GATHER, gather.getRanks());
  if (auto scatter = dyn_cast<ReduceScatterOp>(op))
    return together(QLORA_COLLECTIVE_REDUCE_SCATTER, scatter.getRanks());
  if (auto sum = dyn_cast<AllSumOp>(op))
    return together(QLORA_COLLECTIVE_ALL_REDUCE, sum.getRanks());
  if (auto exchange = dyn_cast<AllToAllOp>(op))
    return together(QLORA_COLLECTIVE_ALL_TO_ALL, exchange.getRanks());
  return 0;
}

/// Returns the seconds of a library op that runs right after its operand
/// `written` was computed. On a CPU the operand is then still in a cache.
static double secondsAfterWriting(Value written, LibraryOp op,
                                  const DeviceProfile &device) {
  const KernelRequest request = kernelRequestOf(op);
  if (device.gpu)
    return secondsOf(request, device);
  const auto type = cast<RankedTensorType>(written.getType());
  const double bytes = double(type.getNumElements()) *
                       type.getElementType().getIntOrFloatBitWidth() / 8;
  return secondsOf(withCached(kernelWork(request), bytes), device);
}

/// Clones `op` outside of its step. Its operands become arguments of `block`;
/// the argument for `stored` has the type `decoded`.
static OwningOpRef<Operation *> standIn(Operation *op, Block &block,
                                        Value stored, Type decoded) {
  IRMapping mapping;
  for (Value operand : op->getOperands())
    mapping.map(operand, block.addArgument(
                             operand == stored ? decoded : operand.getType(),
                             operand.getLoc()));
  return op->clone(mapping);
}

DecodeSeconds qlora::decodeSeconds(ArrayRef<OpOperand *> uses, Type compute,
                                   const DeviceProfile &device) {
  Value stored = uses.front()->get();
  Type decoded = cast<RankedTensorType>(stored.getType()).clone(compute);
  DecodeSeconds seconds;
  Block arguments;
  for (OpOperand *use : uses) {
    Operation *op = use->getOwner();
    OwningOpRef<Operation *> copy = standIn(op, arguments, stored, decoded);
    seconds.panel += secondsOf(op, device);
    seconds.resident += secondsOf(*copy, device);
    seconds.scratch +=
        secondsAfterWriting((*copy)->getOperand(use->getOperandNumber()),
                            cast<LibraryOp>(*copy), device);
  }
  OpBuilder builder(stored.getContext());
  OwningOpRef<Operation *> decode(train::DecodeOp::create(
      builder, stored.getLoc(), decoded,
      arguments.addArgument(stored.getType(), stored.getLoc())));
  seconds.scratch += secondsOf(*decode, device);
  return seconds;
}

std::string qlora::labelOf(Operation *op) {
  if (auto name = op->getLoc()->findInstanceOf<NameLoc>())
    return name.getName().str();
  return op->getName().getStringRef().str();
}
