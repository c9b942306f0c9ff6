// SPDX-License-Identifier: MIT

// The lowering of one step while it runs. Commands are written in
// StepLowering.cpp, buffers made in StepBuffers.cpp; where a value is has been
// decided before (Graph/StepMemory.h).

#ifndef QLORA_COMPILER_SCHEDULE_STEPLOWERINGSTATE_H
#define QLORA_COMPILER_SCHEDULE_STEPLOWERINGSTATE_H

#include "compiler/Graph/OpCost.h"
#include "compiler/Graph/StepMemory.h"
#include "compiler/Schedule/StepLowering.h"

#include "runtime/ABI/module.h"

namespace qlora {

using namespace model;
using namespace train;
using program::Arena;

/// A matrix in memory: part of a buffer, with a row stride in elements.
struct Place {
  mlir::Value buffer;  ///< of a program.buffer
  int64_t offset = 0;  ///< bytes into it
  int64_t stride = 0;  ///< elements from one matrix row to the next
};

class StepLowering {
public:
  StepLowering(StepOp step, const ParameterLayout &layout,
               KernelSymbols &kernels, int64_t tokens)
      : step(step), layout(layout), kernels(kernels), tokens(tokens),
        memory(step) {}

  mlir::FailureOr<program::EntryOp> run(mlir::OpBuilder &outer);

private:
  // Ops.
  mlir::LogicalResult lower(mlir::Operation &op);
  mlir::LogicalResult lowerRows(RowsOp op);
  mlir::LogicalResult lowerLibrary(LibraryOp op);
  bool startResult(mlir::OpResult result, const KernelOperand &operand);
  void lowerConcat(ConcatOp op);
  void lowerStores(MemoryOp op);
  void lowerAllReduce(AllReduceOp op);

  // Buffers.
  Place placeOf(mlir::Value value);
  Place densePlaceOf(mlir::Value value);
  Place at(const MemoryPlace &place);
  mlir::Value bufferOf(unsigned root);
  Place outsidePlace(const OutsideMemory &outside, mlir::RankedTensorType type);
  Place flatPlace(MemorySpace space, bool statistics);
  Place allocate(mlir::Value value, bool isSaved);
  bool isSaved(const MemoryRoot &root) const;
  mlir::Value arenaBuffer(Arena arena, int64_t offset, int64_t bytes, qlora_dtype);
  mlir::Value view(const Place &place, mlir::Value value);
  void bindInputs();
  void bindResults();

  // Commands.
  void launch(mlir::FlatSymbolRefAttr kernel, mlir::ArrayRef<mlir::Value> buffers,
              mlir::ArrayRef<int64_t> access, mlir::ArrayRef<int64_t> dtypes,
              mlir::ArrayRef<int64_t> absent, mlir::ArrayRef<int64_t> constants,
              int64_t rows, mlir::StringRef label);
  void launchCopy(mlir::StringRef kernel, mlir::Value value, const Place &from,
                  const Place &to, mlir::StringRef label);

  StepOp step;
  const ParameterLayout &layout;
  KernelSymbols &kernels;
  int64_t tokens;
  StepMemory memory;
  mlir::OpBuilder b{step.getContext()};
  mlir::DenseMap<unsigned, mlir::Value> buffers; ///< of roots
};

inline mlir::RankedTensorType tensorTypeOf(mlir::Value value) {
  return llvm::cast<mlir::RankedTensorType>(value.getType());
}

} // namespace qlora

#endif // QLORA_COMPILER_SCHEDULE_STEPLOWERINGSTATE_H
