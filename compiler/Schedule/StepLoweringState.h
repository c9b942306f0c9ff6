// SPDX-License-Identifier: MIT

// The lowering of one step while it runs: where values are, and what decides
// it. Commands are written in StepLowering.cpp, places chosen in
// StepPlacement.cpp.

#ifndef QLORA_COMPILER_SCHEDULE_STEPLOWERINGSTATE_H
#define QLORA_COMPILER_SCHEDULE_STEPLOWERINGSTATE_H

#include "compiler/Graph/OpCost.h"
#include "compiler/Schedule/StepLowering.h"

#include "runtime/ABI/module.h"

namespace qlora {

using namespace model;
using namespace train;
using program::Arena;

/// A value in memory: part of a buffer, with a row stride in elements.
struct Place {
  mlir::Value buffer;        ///< of a program.buffer
  int64_t offset = 0;  ///< bytes into it
  int64_t stride = 0;  ///< elements from one matrix row to the next
};

class StepLowering {
public:
  StepLowering(StepOp step, const ParameterLayout &layout,
               KernelSymbols &kernels, int64_t tokens)
      : step(step), layout(layout), kernels(kernels), tokens(tokens) {}

  mlir::FailureOr<program::EntryOp> run(mlir::OpBuilder &outer);

private:
  // Before: what decides where a result is written.
  void countUses();
  void placeResults();
  void placeGradient(train::AccumulateOp op);
  void placeParts(ConcatOp op);
  int64_t rangeBytes(ConcatOp op, mlir::Value part) const;

  // Ops.
  mlir::LogicalResult lower(mlir::Operation &op);
  mlir::LogicalResult lowerRows(RowsOp op);
  void placeOverOperands(RowsOp op);
  mlir::LogicalResult lowerLibrary(LibraryOp op);
  void lowerSplit(SplitOp op);
  void lowerConcat(ConcatOp op);
  void lowerAccumulate(train::AccumulateOp op);
  void lowerResult(ResultOp op);
  void lowerAllReduce(AllReduceOp op);

  // Buffers.
  Place allocate(mlir::Value value);
  void markSaved(mlir::Operation &op);
  Place placeOf(mlir::Value value);
  Place resultPlace(mlir::Value value);
  Place tiedPlace(mlir::OpOperand &operand, mlir::Value result, bool &continues);
  mlir::Value arenaBuffer(Arena arena, int64_t offset, int64_t bytes, qlora_dtype);
  mlir::Value view(const Place &place, mlir::Value value);
  int64_t spanBytes(const Place &place, mlir::RankedTensorType type) const;
  Place flatPlace(FlatKind kind, bool statistics);
  Place statisticPlace(int64_t element);
  void bind(qlora_binding_kind kind, mlir::Value buffer);

  // Commands.
  void launch(mlir::FlatSymbolRefAttr kernel, mlir::ArrayRef<mlir::Value> buffers,
              mlir::ArrayRef<int64_t> access, mlir::ArrayRef<int64_t> dtypes,
              mlir::ArrayRef<int64_t> absent, mlir::ArrayRef<int64_t> constants,
              int64_t rows, mlir::StringRef label);
  void launchCopy(mlir::StringRef kernel, mlir::Value value, const Place &from,
                  const Place &to, qlora_dtype toType, mlir::StringRef label);

  StepOp step;
  const ParameterLayout &layout;
  KernelSymbols &kernels;
  int64_t tokens;
  mlir::OpBuilder b{step.getContext()};
  mlir::DenseMap<mlir::Value, Place> places;
  mlir::DenseMap<mlir::Value, Place> planned; ///< where a result has to be written
  mlir::DenseSet<mlir::Value> adds;           ///< gradients that their op adds itself
  mlir::DenseMap<mlir::Value, unsigned> usesLeft;
};

inline mlir::RankedTensorType tensorTypeOf(mlir::Value value) {
  return llvm::cast<mlir::RankedTensorType>(value.getType());
}

} // namespace qlora

#endif // QLORA_COMPILER_SCHEDULE_STEPLOWERINGSTATE_H
