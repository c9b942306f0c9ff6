// SPDX-License-Identifier: MIT

// Lowering of one train.step to one program.entry, for lower-to-program.

#ifndef QLORA_COMPILER_SCHEDULE_STEPLOWERING_H
#define QLORA_COMPILER_SCHEDULE_STEPLOWERING_H

#include "compiler/Memory/StepMemory.h"
#include "compiler/Optimize/OpCost.h"
#include "compiler/Schedule/ParameterLayout.h"

#include "runtime/ABI/module.h"

#include <map>

namespace qlora {

inline constexpr int64_t kArenaAlignment = 64;

/// Marks commands that only the step's last micro-batch runs, until the entry
/// for the other micro-batches is cloned.
inline constexpr llvm::StringLiteral kOnceAStepAttr = "once_a_step";

/// Returns the bytes of the input arena. It contains the first `inputs` inputs
/// in kStepInputs, each as one i32 per token of the largest variant (`tokens`).
/// All variants use the same offsets.
int64_t inputBytes(int64_t inputs, int64_t tokens);
/// Returns the bytes of the result arena that a step needs. Each result is one
/// number, except `correct` and `logits`.
int64_t resultArenaBytes(train::StepOp step);

/// The `program.kernel`s of a module: one per library op and one per distinct
/// generated body, so that the code size does not depend on the layer count.
class KernelSymbols {
public:
  explicit KernelSymbols(mlir::ModuleOp module)
      : builder(mlir::OpBuilder::atBlockEnd(module.getBody())),
        loc(module.getLoc()) {}

  mlir::FlatSymbolRefAttr library(llvm::StringRef op);
  /// `dtypes`, `strides` and `groups` list the inputs, then the results.
  /// `aligned` is as in program.kernel.
  mlir::FlatSymbolRefAttr generated(model::RowsOp rows,
                                    llvm::ArrayRef<int64_t> dtypes,
                                    llvm::ArrayRef<int64_t> strides,
                                    llvm::ArrayRef<int64_t> groups,
                                    int64_t aligned);

private:
  mlir::OpBuilder builder;
  mlir::Location loc;
  llvm::StringMap<mlir::FlatSymbolRefAttr> known; ///< by library op
  std::map<size_t, llvm::SmallVector<program::KernelOp>> bodies; ///< by hash
  llvm::StringMap<unsigned> labels;
};

/// A matrix in memory: a range of a buffer, with a row stride in elements.
struct Place {
  mlir::Value buffer;  ///< result of a program.buffer
  int64_t offset = 0;  ///< bytes from the start of `buffer`
  int64_t stride = 0;  ///< elements from one matrix row to the next
};

/// The shards of a buffer, as in program.buffer.
struct BufferPieces {
  int64_t count = 1;
  program::Group of = program::Group::FSDP;
  int64_t step = 0; ///< bytes from one shard to the next; 0: shard size
};

/// Lowers one step. StepMemory decides where its values are. An accumulate step
/// becomes an entry of kind AccumulateLast. StepLowering.cpp creates the
/// commands, except collectives and host copies (LowerExchanges.cpp).
/// StepBuffers.cpp creates the buffers.
class StepLowering {
public:
  /// `tokens` is the token count of the largest variant.
  StepLowering(train::StepOp step, const ParameterLayout &layout,
               KernelSymbols &kernels, int64_t tokens)
      : step(step), layout(layout), kernels(kernels), tokens(tokens),
        memory(step) {}

  /// Creates the entry at `outer`. Emits an error for an op other than row,
  /// library, view and train ops.
  mlir::FailureOr<program::EntryOp> run(mlir::OpBuilder &outer);

private:
  // Lowering of ops.
  mlir::LogicalResult lower(mlir::Operation &op);
  mlir::LogicalResult lowerRows(model::RowsOp op);
  mlir::LogicalResult lowerLibrary(model::LibraryOp op);
  bool startResult(mlir::OpResult result, const KernelOperand &operand);
  void lowerConcat(model::ConcatOp op);
  void lowerStores(model::MemoryOp op);
  void lowerAllReduce(train::AllReduceOp op);
  void lowerFromHost(mlir::Location loc, mlir::Value to,
                     const ParameterPlace &place);
  void lowerGather(model::GatherWeightOp op);
  void lowerGather(train::GatherFlatOp op);
  void lowerScatter(train::ScatterGradientOp op);
  void lowerCopy(train::CopyToHostOp op);
  void lowerCopy(train::CopyFromHostOp op);
  void lowerTogether(mlir::Operation &op, model::Ranks ranks);
  void lowerSend(model::SendOp op);
  void lowerReceive(model::ReceiveOp op);
  void lowerAllSum(model::AllSumOp op);

  // Places of values in buffers.
  Place placeOf(mlir::Value value);
  Place densePlaceOf(mlir::Value value);
  static bool isDense(const Place &place, mlir::RankedTensorType type);
  Place at(const MemoryPlace &place);
  mlir::Value bufferOf(unsigned root);
  Place outsidePlace(const model::OutsideMemory &outside,
                     mlir::RankedTensorType type);
  Place flatPlace(const model::OutsideMemory &outside);
  Place allocate(mlir::Value value, int64_t bytes, bool isSaved);
  int64_t bytesFor(mlir::Value value) const;
  bool hasRoomBehind(mlir::Value value);
  bool isSaved(const MemoryRoot &root) const;
  mlir::Value arenaBuffer(program::Arena arena, int64_t offset, int64_t bytes,
                          qlora_dtype dtype, const BufferPieces &pieces = {});
  Place partPlace(const ParameterPlace &place, program::Arena arena,
                  int64_t width, model::PartAttr part,
                  mlir::RankedTensorType type);
  mlir::Value view(const Place &place, mlir::Value value);
  void bindInputs();
  void bindResults();

  // Appending of commands.
  void launch(mlir::FlatSymbolRefAttr kernel,
              llvm::ArrayRef<mlir::Value> buffers,
              llvm::ArrayRef<int64_t> access, llvm::ArrayRef<int64_t> dtypes,
              llvm::ArrayRef<int64_t> absent, llvm::ArrayRef<int64_t> constants,
              int64_t rows, llvm::StringRef label);
  void launchCopy(mlir::StringRef kernel, mlir::Value value, const Place &from,
                  const Place &to, mlir::StringRef label);

  train::StepOp step;
  const ParameterLayout &layout;
  KernelSymbols &kernels;
  int64_t tokens;
  StepMemory memory;
  mlir::OpBuilder b{step.getContext()};
  mlir::DenseMap<unsigned, mlir::Value> buffers; ///< by memory root
  int64_t gathers = 0; ///< next number of a collective, except gradient buckets
};

inline mlir::RankedTensorType tensorTypeOf(mlir::Value value) {
  return llvm::cast<mlir::RankedTensorType>(value.getType());
}

} // namespace qlora

#endif // QLORA_COMPILER_SCHEDULE_STEPLOWERING_H
