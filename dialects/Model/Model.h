// SPDX-License-Identifier: MIT

// The model dialect: the one header to include. The essay is in
// ModelDialect.td, the ops in ModelOps.td.

#ifndef QLORA_DIALECTS_MODEL_MODEL_H
#define QLORA_DIALECTS_MODEL_MODEL_H

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

#include "runtime/ABI/kernel.h"

#include "dialects/Model/ModelDialect.h.inc"
#include "dialects/Model/ModelEnums.h.inc"
#define GET_ATTRDEF_CLASSES
#include "dialects/Model/ModelAttrs.h.inc"
#define GET_TYPEDEF_CLASSES
#include "dialects/Model/ModelTypes.h.inc"

namespace qlora::model {

/// Trait of ops that evaluation leaves out: the result is the first operand.
template <typename Op>
class TrainingOnly : public mlir::OpTrait::TraitBase<Op, TrainingOnly> {};

/// Trait of ops that are linear in their first operand.
template <typename Op>
class SumsThrough : public mlir::OpTrait::TraitBase<Op, SumsThrough> {};
template <typename Op>
class TokenByToken : public mlir::OpTrait::TraitBase<Op, TokenByToken> {};
template <typename Op>
class AddsTokens : public mlir::OpTrait::TraitBase<Op, AddsTokens> {};
template <typename Op>
class LeavesGroups : public mlir::OpTrait::TraitBase<Op, LeavesGroups> {};

/// Trait of arithmetic that makes one number of all elements of a row.
template <typename Op>
class RowReduction : public mlir::OpTrait::TraitBase<Op, RowReduction> {};

/// Discardable attribute of a module whose adapters have dropout: what
/// model.dropout the input of each adapter goes through. Ops are fused and
/// renamed; this stays, so that the runtime can draw the masks again.
///
///   {"base_model.model.….q_proj.lora_A.weight" =
///      {op = 1 : i64, probability = 1.0e-01 : f64}, ...}
inline constexpr llvm::StringLiteral kAdapterDropoutAttr =
    "model.adapter_dropout";

/// Discardable attribute of a module whose adapters start at factors of the
/// weights beside them, for the runtime, which computes them: of which weight,
/// whether its file has [in, out], and what A and B are multiplied with.
///
///   {"base_model.model.….q_proj.lora_A.weight" =
///      {scale = 2.0 : f64, turned = false, weight = "….q_proj.weight"}, ...}
inline constexpr llvm::StringLiteral kAdapterFactorsAttr =
    "model.adapter_factors";

/// One operand of a Kernels.def op in a call: an operand or result of the
/// MLIR op, the same memory as a result (for `c+` operands with a tied
/// operand), the planned workspace, or nothing.
struct KernelArgument {
  enum Kind { Operand, Result, Workspace, Absent } kind;
  unsigned index = 0;
};

/// A call of a Kernels.def op. Constants are in that op's order; a constant
/// named `ld<letter>...` listed in `strides` is filled in by
/// lower-to-program with the row stride of the kernel operand given there.
struct KernelCall {
  llvm::StringRef op;
  llvm::SmallVector<KernelArgument> arguments;
  llvm::SmallVector<int64_t> constants;
  /// (constant, kernel operand) pairs.
  llvm::SmallVector<std::pair<unsigned, unsigned>> strides;
};

/// Memory that a step does not make: it is there before, or stays after.
enum class MemorySpace {
  Input,
  Weight, ///< of any role; a trained one is the flat arena's too
  Trainable,
  Gradient,
  State, ///< what an optimizer keeps
  Rounded,
  Residual, ///< what rounding has left of gradients
  Result
};
struct OutsideMemory {
  MemorySpace space;
  /// The symbol of a parameter, or the name of an input, a result or a
  /// statistic; null: a flat arena.
  mlir::Attribute name;
  /// Of a flat arena these rows, counted from the first parameter; 0 rows: all
  /// of it, with the row of statistics before the parameters. Of a parameter
  /// its own rows, or 0: all of it. Of the state arena bytes.
  int64_t row = 0, rows = 0;
  /// So many ranges of `rows` follow each other, of which each rank has one.
  int64_t pieces = 1;
  /// Of a trained parameter this part; null: all of it.
  PartAttr part = {};
  Ranks piecesOf = Ranks::FSDP;

  bool operator==(const OutsideMemory &) const = default;
  /// Whether the two may have a byte in common.
  bool overlaps(const OutsideMemory &other) const;
};

/// A result that can be written where an operand is, if nothing reads that
/// afterwards.
struct MemoryTie {
  mlir::OpOperand *operand;
  mlir::OpResult result;
  bool continues; ///< starts from the operand's numbers, which are copied else
};

/// A matrix that is a range of another, from this row and column on.
struct MemoryPart {
  mlir::Value part, whole;
  int64_t row = 0, column = 0;
};

/// What an op leaves outside of the step: `value`, or what it makes itself.
struct MemoryStore {
  OutsideMemory memory;
  mlir::OpOperand *value = nullptr;
  bool adds = false; ///< to what is there
};

/// The ties of an op by its other interfaces. A library op that accumulates
/// continues `init`. A row op can write over every operand of the result's type
/// that is read by whole rows and in no other way, since a generated kernel
/// loads all that it needs of a column (of two, where rows are rotated) before
/// it stores there; what another map reads may be read for a later row.
llvm::SmallVector<MemoryTie> tiesOf(mlir::Operation *op);

/// True for an op that only gives ranges names, or puts them together.
bool isView(mlir::Operation *op);

/// What an op is in a training step (StagedOp). Ops that are none are of the
/// forward and of no layer.
int64_t layerOf(mlir::Operation *op);
StepPhase phaseOf(mlir::Operation *op);
/// Also of what the backward does again.
inline bool isBackward(mlir::Operation *op) {
  const StepPhase phase = phaseOf(op);
  return phase == StepPhase::Backward || phase == StepPhase::Recomputed ||
         phase == StepPhase::Exchange;
}
/// Of the model before training, whose weights stay what they are.
inline bool isReference(mlir::Operation *op) {
  return phaseOf(op) == StepPhase::Reference;
}
/// Nothing for an op that is no StagedOp.
void setLayer(mlir::Operation *op, int64_t layer);
void setPhase(mlir::Operation *op, StepPhase phase);
/// Gives `to`, which is made for `from` or in its place, its layer and phase.
void copyStage(mlir::Operation *from, mlir::Operation *to);

/// A double as a constant of a launch.
int64_t doubleBits(double value);

/// Number of tokens, or rows, of a tensor seen as a matrix: the product of
/// all dimensions but the last.
int64_t matrixRows(mlir::RankedTensorType type);
/// The last dimension.
int64_t matrixColumns(mlir::RankedTensorType type);
/// The type of a value that is a tensor, and its last dimension.
inline mlir::RankedTensorType tensorOf(mlir::Value value) {
  return llvm::cast<mlir::RankedTensorType>(value.getType());
}
inline int64_t columnsOf(mlir::Value value) {
  return matrixColumns(tensorOf(value));
}
/// Bytes of a tensor with static shape, quantised ones included.
int64_t tensorBytes(mlir::RankedTensorType type);
/// The ABI's name of an element type; nullopt if it has none.
std::optional<qlora_dtype> elementDtype(mlir::Type type);

/// The constraints of ModelTensors.td on operands and results.
bool isStorable(mlir::Type type);
bool isFloatStorable(mlir::Type type);
bool isRowStorable(mlir::Type type);
bool isWeightStorable(mlir::Type type);
bool isRow(mlir::Type type);

/// Checks (R1) of RowOp.
llvm::LogicalResult verifyRowOp(mlir::Operation *op);
/// Rows of a row op whose first result has a static shape.
int64_t rowCount(mlir::Operation *rowOp);

/// True for [B, T, ...] tensors: activations, ids, masks.
inline bool isTokenShaped(mlir::RankedTensorType type) {
  return type.getRank() >= 2 && type.isDynamicDim(0) && type.isDynamicDim(1);
}

/// Rows whose losses and sums exist at a time: a step of a long context does
/// not hold an f32 gradient of all its rows. A kernel whose logits do too
/// takes fewer when tuned.
inline constexpr int64_t kHeadChunkRows = 4096;
/// Of a row, in what head_part finds (Kernels.def).
inline constexpr int64_t kHeadStateNumbers = 4;

/// Scratch slots of the attention kernels: the most threads they use.
inline constexpr int64_t kAttentionSlots = 16;

/// Creates `model.rows` for the arithmetic that `build` writes.
mlir::Operation *
buildRows(mlir::OpBuilder &builder, mlir::Location loc,
          mlir::TypeRange results, mlir::ValueRange inputs, int64_t columns,
          llvm::ArrayRef<MapAttr> maps, llvm::StringRef label,
          llvm::function_ref<llvm::SmallVector<mlir::Value>(
              mlir::OpBuilder &, mlir::ValueRange)>
              build);

} // namespace qlora::model

#include "dialects/Model/ModelInterfaces.h.inc"
#define GET_OP_CLASSES
#include "dialects/Model/ModelOps.h.inc"

namespace qlora::model {

/// A head that is done in parts.
struct DividedHead {
  mlir::Operation *loss; ///< whose first three results a head has
  mlir::Value hidden, targets;
  int64_t words;
  llvm::APFloat cap;
  bool hasGradient; ///< of hidden, after the three
};
/// TableOp::divideTable of heads; the gradient of hidden is f32.
llvm::SmallVector<mlir::Value> divideHead(mlir::OpBuilder &builder,
                                          const DividedHead &head,
                                          mlir::Value piece, int64_t shards,
                                          Ranks ranks);

/// The call of a product as a GEMM: a plain matmul, or, where it has a type to
/// decode W to, a panel_matmul.
KernelCall productCall(WeightedProduct product);
/// Columns of a product that are computed at a time: few enough that what
/// they are multiplied with stays in the cache next to a core, whole vectors
/// and tiles, and so many panels that threads end at about the same time.
int64_t panelColumns(int64_t columns);

/// The same weight, seen by the product that goes back from y to x.
inline WeightLayout turned(WeightLayout layout) {
  return layout == WeightLayout::OutIn ? WeightLayout::InOut
                                       : WeightLayout::OutIn;
}

/// Erases arithmetic of the region that nothing uses.
void eraseDeadArithmetic(RowsOp rows);

/// Drops inputs that the region does not read and results that are an input
/// unchanged. Returns what stands for each result; `rows`, which nothing may
/// use yet, is gone if anything was dropped.
llvm::SmallVector<mlir::Value> simplifyRows(RowsOp rows);

} // namespace qlora::model

#endif // QLORA_DIALECTS_MODEL_MODEL_H
