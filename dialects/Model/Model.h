// SPDX-License-Identifier: MIT

// The model dialect: the one header to include. ModelDialect.td describes the
// dialect; ModelTypes.td, ModelAttributes.td and ModelOps.td have the rest.

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

#include "runtime/ABI/collective.h"
#include "runtime/ABI/kernel.h"

#include <concepts>

#include "dialects/Model/ModelDialect.h.inc"
#include "dialects/Model/ModelEnums.h.inc"
#define GET_ATTRDEF_CLASSES
#include "dialects/Model/ModelAttrs.h.inc"
#define GET_TYPEDEF_CLASSES
#include "dialects/Model/ModelTypes.h.inc"

namespace qlora {
struct KernelOp;
}

namespace qlora::model {

/// Trait of ops that only training computes. In evaluation, the first operand
/// of such an op replaces its result.
template <typename Op>
class TrainingOnly : public mlir::OpTrait::TraitBase<Op, TrainingOnly> {};

/// Trait of ops that are linear in their first operand.
template <typename Op>
class ReductionTransparentOp
    : public mlir::OpTrait::TraitBase<Op, ReductionTransparentOp> {};
template <typename Op>
class TokenwiseOp : public mlir::OpTrait::TraitBase<Op, TokenwiseOp> {};
template <typename Op>
class TokenReductionOp : public mlir::OpTrait::TraitBase<Op, TokenReductionOp> {
};
template <typename Op>
class UngroupOp : public mlir::OpTrait::TraitBase<Op, UngroupOp> {};

/// Trait of row arithmetic that reduces a row to one number.
template <typename Op>
class RowReduction : public mlir::OpTrait::TraitBase<Op, RowReduction> {};

/// Discardable attribute of a module whose adapters have dropout: the
/// model.dropout that each adapter's input passes through. Passes fuse and
/// rename ops but keep this, so that the runtime can regenerate the masks.
///
///   {"base_model.model.….q_proj.lora_A.weight" =
///      {op = 1 : i64, probability = 1.0e-01 : f64}, ...}
inline constexpr llvm::StringLiteral kAdapterDropoutAttr =
    "model.adapter_dropout";

/// Discardable attribute of a module whose adapters are initialized with
/// factors of their base weights, which the runtime computes. For each adapter:
/// the weight's name, whether its file stores it as [in, out] (`turned`), and
/// the number that multiplies A and B (`scale`).
///
///   {"base_model.model.….q_proj.lora_A.weight" =
///      {scale = 2.0 : f64, turned = false, weight = "….q_proj.weight"}, ...}
inline constexpr llvm::StringLiteral kAdapterFactorsAttr =
    "model.adapter_factors";

/// Discardable attribute of a function: the kind of its train.step, prefill or
/// decode. Without it, the function is the forward of training.
inline constexpr llvm::StringLiteral kStepAttr = "model.step";

/// Discardable attribute of a module that generates: rows longer than this
/// number of tokens have other RoPE frequencies (longrope).
inline constexpr llvm::StringLiteral kRestartLengthAttr =
    "model.restart_length";

/// What a call passes for an operand of Kernels.def: an operand or result of
/// the MLIR op, or null. A result that is tied to an operand (`c+` in
/// Kernels.def) is passed once.
struct CallOperand {
  llvm::StringRef name;
  mlir::Value value;
};

/// What a call passes for a constant of Kernels.def: an integer, or the bits of
/// a double.
struct CallConstant {
  CallConstant(llvm::StringRef name, std::integral auto number)
      : name(name), bits(int64_t(number)), isDouble(false) {}
  CallConstant(llvm::StringRef name, double number);
  CallConstant(llvm::StringRef name, const llvm::APFloat &number)
      : CallConstant(name, number.convertToDouble()) {}

  llvm::StringRef name;
  int64_t bits;
  bool isDouble;
};

/// A call of a Kernels.def op, with operands and constants in the order of
/// Kernels.def. An operand is null if it is absent or the workspace.
/// lower-to-program sets the row strides of operands that may have one.
struct KernelCall {
  /// Takes operands and constants by name, in any order. It is a fatal error if
  /// a name is unknown or missing. These may be left out: optional operands,
  /// the workspace, and constants that follow from an operand's type. Such
  /// constants are row strides, and `block` and `double_quant` of `w`.
  KernelCall(llvm::StringRef name, llvm::ArrayRef<CallOperand> values,
             llvm::ArrayRef<CallConstant> numbers);

  const KernelOp *op;
  llvm::SmallVector<mlir::Value> operands;
  llvm::SmallVector<int64_t> constants;

  /// Returns the index of the operand that is `value`; nullopt if none is.
  std::optional<unsigned> indexOf(mlir::Value value) const;
  /// Returns whether an operand may have space between rows: it has a row
  /// stride, and the call divides it into the same rows as its type does.
  bool mayHaveStride(unsigned operand) const;
};

/// Memory outside of the step: it exists before the step, or outlives it.
enum class MemorySpace {
  Input,
  Weight, ///< of any role; a trainable one also overlaps the flat arena
  Trainable,
  Gradient,
  State, ///< optimizer state
  Rounded,
  Residual, ///< quantization error of gradients
  Cache,    ///< a model.cache
  Result
};
struct OutsideMemory {
  MemorySpace space;
  /// The symbol of a parameter, or the name of an input, a result or a
  /// statistic; null: a flat arena.
  mlir::Attribute name;
  /// The first row and the number of rows:
  ///
  ///   in a parameter         rows of the parameter
  ///   in a flat arena        rows after the statistics row
  ///   in the state arena     bytes
  ///
  /// `rows` 0: all of the memory, including an arena's statistics row.
  int64_t row = 0, rows = 0;
  /// Number of consecutive ranges of `rows` rows, one per rank of `piecesOf`.
  int64_t pieces = 1;
  /// Range of a trainable parameter; null: all of it.
  PartAttr part = {};
  Ranks piecesOf = Ranks::FSDP;

  bool operator==(const OutsideMemory &) const = default;
  /// Returns whether this memory and `other` may have a byte in common.
  bool overlaps(const OutsideMemory &other) const;
};

/// A result that can be written in place over an operand, if no later op reads
/// the operand.
struct MemoryTie {
  mlir::OpOperand *operand;
  mlir::OpResult result;
  bool continues; ///< starts from the operand's values; false: overwrites
};

/// `part` is a view of the matrix `whole` that starts at `row` and `column`.
struct MemoryRange {
  mlir::Value part, whole;
  int64_t row = 0, column = 0;
};

/// A write to memory outside of the step. It writes operand `value`, or if
/// `value` is null, values that the op computes.
struct MemoryStore {
  OutsideMemory memory;
  mlir::OpOperand *value = nullptr;
  bool adds = false; ///< accumulates into the memory
};

/// Returns the ties that follow from an op's other interfaces. An accumulating
/// library op continues `init`. A row op can overwrite operands of the result's
/// type whose map is `full`: the kernel loads a column (two, if rows are
/// rotated) before it stores to that column. Operands with other maps are read
/// again for later rows.
llvm::SmallVector<MemoryTie> tiesOf(mlir::Operation *op);

/// Returns whether an op only splits or concatenates tensors.
bool isView(mlir::Operation *op);

/// Return the layer and phase of a StagedOp; -1 and Forward for other ops.
int64_t layerOf(mlir::Operation *op);
StepPhase phaseOf(mlir::Operation *op);
/// Returns whether an op runs in the backward, which includes recomputed ops
/// and the gradient exchange.
inline bool isBackward(mlir::Operation *op) {
  const StepPhase phase = phaseOf(op);
  return phase == StepPhase::Backward || phase == StepPhase::Recomputed ||
         phase == StepPhase::Exchange;
}
/// Returns whether an op belongs to the forward of the reference model, which
/// is the model before training.
inline bool isReference(mlir::Operation *op) {
  return phaseOf(op) == StepPhase::Reference;
}
/// Set the layer or phase of a StagedOp; do nothing for other ops.
void setLayer(mlir::Operation *op, int64_t layer);
void setPhase(mlir::Operation *op, StepPhase phase);
/// Copies layer and phase of `from` to `to`, its replacement or gradient.
void copyStage(mlir::Operation *from, mlir::Operation *to);

/// Returns an integer attribute of `op`, or `ifAbsent`.
inline int64_t numberOf(mlir::Operation *op, llvm::StringRef name,
                        int64_t ifAbsent = 1) {
  auto number = op->getAttrOfType<mlir::IntegerAttr>(name);
  return number ? number.getInt() : ifAbsent;
}

/// Returns the mesh along which a module is divided; all 1 if it is not.
qlora_mesh meshOf(mlir::Operation *module);
/// Sets the size of one axis of a module's mesh.
void setAxis(mlir::Operation *module, uint32_t qlora_mesh::*axis,
             int64_t ranks);
/// Whether the ranks of a group have the same rows of data.
bool haveSameRows(Ranks ranks);
/// Ranks of the axes of group FSDP, whatever they shard.
int64_t piecesOf(mlir::Operation *module);

/// Module attribute: number of ranks of a run; 0: any number.
inline constexpr llvm::StringLiteral kRunRanksAttr = "model.run_ranks";
inline int64_t runRanksOf(mlir::Operation *module) {
  return numberOf(module, kRunRanksAttr, /*ifAbsent=*/0);
}

/// Returns the bits of a double, as a constant of a kernel call.
int64_t doubleBits(double value);

/// Number of tokens, or rows, of a tensor seen as a matrix: the product of
/// all dimensions but the last.
int64_t matrixRows(mlir::RankedTensorType type);
/// Size of the last dimension.
int64_t matrixColumns(mlir::RankedTensorType type);
/// Return the type, or the size of the last dimension, of a tensor value.
inline mlir::RankedTensorType tensorOf(mlir::Value value) {
  return llvm::cast<mlir::RankedTensorType>(value.getType());
}
inline int64_t columnsOf(mlir::Value value) {
  return matrixColumns(tensorOf(value));
}
/// Returns `type` with another length in one dimension.
mlir::RankedTensorType withLength(mlir::RankedTensorType type,
                                  unsigned dimension, int64_t length);
/// Return the type of a tensor with another first or last dimension.
inline mlir::RankedTensorType withRows(mlir::Value value, int64_t rows) {
  return withLength(tensorOf(value), 0, rows);
}
inline mlir::RankedTensorType withColumns(mlir::Value value, int64_t columns) {
  return withLength(tensorOf(value), tensorOf(value).getRank() - 1, columns);
}
/// Bytes of a tensor with static shape, quantized or not.
int64_t tensorBytes(mlir::RankedTensorType type);
/// Returns the ABI's dtype of an element type; nullopt if the ABI has none.
std::optional<qlora_dtype> elementDtype(mlir::Type type);

/// Type constraints of operands and results in ModelTypeConstraints.td.
bool isStorable(mlir::Type type);
bool isFloatStorable(mlir::Type type);
bool isRowStorable(mlir::Type type);
bool isWeightStorable(mlir::Type type);
bool isRow(mlir::Type type);

/// Returns the default of RowOp::getRowMaps: `full` for each operand.
llvm::SmallVector<MapAttr> fullMaps(mlir::Operation *op);
/// Verifies constraint (R1) of RowOp (ModelInterfaces.td).
llvm::LogicalResult verifyRowOp(mlir::Operation *op);
/// Number of rows of a row op whose first result has a static shape.
int64_t rowCount(mlir::Operation *rowOp);

/// Maximum rows per chunk of the LM head. Only one chunk's losses and gradient
/// sums exist at a time, so a long context needs no f32 gradient of all rows.
/// Tuning may choose fewer rows for a kernel that also holds logits.
inline constexpr int64_t kHeadChunkRows = 4096;
/// Values per row in the `states` of head_part (Kernels.def).
inline int64_t headStateNumbers(const llvm::APFloat &labelSmoothing) {
  return labelSmoothing.isZero() ? 4 : 5;
}

/// Maximum threads of an attention kernel; each has a slot of the workspace.
inline constexpr int64_t kAttentionSlots = 16;

/// Creates `model.rows`; `build` writes the arithmetic into its region.
mlir::Operation *
buildRows(mlir::OpBuilder &builder, mlir::Location loc, mlir::TypeRange results,
          mlir::ValueRange inputs, int64_t columns,
          llvm::ArrayRef<MapAttr> maps, llvm::StringRef label,
          llvm::function_ref<llvm::SmallVector<mlir::Value>(mlir::OpBuilder &,
                                                            mlir::ValueRange)>
              build);

/// Returns the types of the results of a loss over sequences, for losses f32
/// [B]: f32 [B] if a result has no name, else f32 [1].
llvm::SmallVector<mlir::Type>
lossTypes(mlir::Value losses, llvm::ArrayRef<llvm::StringLiteral> readNames);

} // namespace qlora::model

#include "dialects/Model/ModelInterfaces.h.inc"
#define GET_OP_CLASSES
#include "dialects/Model/ModelOps.h.inc"

namespace qlora::model {

/// An LM head that is computed in shards of the vocabulary.
struct ShardedHead {
  mlir::Operation *loss; ///< first results: loss, count and correct
  mlir::Value hidden, targets;
  int64_t words;
  llvm::APFloat cap, labelSmoothing;
  bool hasOwnProbability;
  bool hasGradient; ///< fourth result: gradient of hidden
};
/// Implements TableOp::shardTable for LM heads; the gradient of hidden is f32.
llvm::SmallVector<mlir::Value> divideHead(mlir::OpBuilder &builder,
                                          const ShardedHead &head,
                                          mlir::Value piece, int64_t shards,
                                          Ranks ranks);

/// Returns the kernel call of a weighted matmul: int8_matmul if x is rounded to
/// 8 bits, panel_matmul if W is decoded, else matmul.
KernelCall matmulCall(WeightedMatmul product);
/// Returns how many output columns a kernel computes at a time. The rows of W
/// for these columns, a panel, fit into a core's cache and consist of whole
/// vectors and tiles. There are enough panels to keep all threads busy.
int64_t panelColumns(int64_t columns);

/// Returns the layout with which the backward multiplies dy by a weight that
/// has `layout` in the forward.
inline WeightLayout turned(WeightLayout layout) {
  return layout == WeightLayout::OutIn ? WeightLayout::InOut
                                       : WeightLayout::OutIn;
}

/// Erases unused arithmetic in the region.
void eraseDeadArithmetic(RowsOp rows);

/// Drops inputs that the region does not read and results that are an unchanged
/// input. Returns the replacement of each result. `rows` must have no uses yet;
/// it is erased if anything was dropped.
llvm::SmallVector<mlir::Value> simplifyRows(RowsOp rows);

} // namespace qlora::model

#endif // QLORA_DIALECTS_MODEL_MODEL_H
