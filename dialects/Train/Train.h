// SPDX-License-Identifier: MIT

// The train dialect: the one header to include. See TrainOps.td.

#ifndef QLORA_DIALECTS_TRAIN_TRAIN_H
#define QLORA_DIALECTS_TRAIN_TRAIN_H

#include "dialects/Model/Model.h"
#include "runtime/ABI/module.h"

#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/StringSwitch.h"

#include "dialects/Train/TrainDialect.h.inc"
#include "dialects/Train/TrainEnums.h.inc"
#define GET_ATTRDEF_CLASSES
#include "dialects/Train/TrainAttrs.h.inc"

namespace qlora::train {

/// Columns of the flat arenas, seen as matrices; also the size in elements of
/// the statistics row at the start of the gradient arena.
inline constexpr int64_t kFlatColumns = 1024;
/// Inputs that the runtime can write for a step: i32 [B, T] or [B], except
/// `desirable`, f32 [B].
inline constexpr llvm::StringLiteral kStepInputs[] = {
#define QLORA_INPUT(NAME, NUMBER, CASE, WORD, PER) #WORD,
#include "runtime/ABI/Enums.def"
};
/// Returns whether an input has one value per sequence.
inline bool isPerSequence(llvm::StringRef input) {
  return llvm::StringSwitch<bool>(input)
#define QLORA_INPUT(NAME, NUMBER, CASE, WORD, PER)                             \
  .Case(#WORD, QLORA_PER_##PER == QLORA_PER_SEQUENCE)
#include "runtime/ABI/Enums.def"
      .Default(false);
}
/// Elements of the statistics row, in order: sums over a step's micro-batches
/// and ranks.
inline constexpr llvm::StringLiteral kStatistics[] = {
#define QLORA_STATISTIC(NAME, NUMBER, CASE, WORD) #WORD,
#include "runtime/ABI/Enums.def"
};
/// Results that are not statistics.
inline constexpr llvm::StringLiteral kOtherResults[] = {
#define QLORA_RESULT(NAME, NUMBER, CASE, WORD, PER) #WORD,
#include "runtime/ABI/Enums.def"
};

/// Parameters start at multiples of this many elements in a flat arena.
inline constexpr int64_t kFlatAlignment = 16;

struct Optimizer; ///< Optimizers.h

/// Settings of a trainable parameter's update. Parameters with fsdp shards form
/// separate groups after all other groups, because their gradients are summed
/// over a different group of ranks.
struct UpdateKind {
  bool isSharded = false;
  const Optimizer *optimizer = nullptr; ///< in the optimizer table
  double rateScale = 1;                 ///< factor of the learning rate
  bool isUndecayed = false;

  auto operator<=>(const UpdateKind &) const = default;
};

UpdateKind updateKindOf(model::ParameterOp parameter);

/// The rows of the flat arenas whose parameters have one UpdateKind. Row 0
/// follows the statistics row. `rows` is divisible by the mesh's zero1, and
/// by model::runRanksOf() if that is not 0.
struct FlatGroup {
  UpdateKind kind;
  int64_t row = 0;
  int64_t rows = 0;
};

/// Returns the groups by kind, each of whole rows. Does not depend on the order
/// of the parameters.
llvm::SmallVector<FlatGroup> flatGroups(mlir::Operation *module);

/// Elements of the flat arenas: the statistics row and all groups.
int64_t flatElements(mlir::Operation *module);
/// Elements of a parameter, or of a rank's fsdp shard of it, in a flat arena,
/// including padding that aligns the next parameter.
int64_t flatElements(model::ParameterOp parameter);

/// Reverse-mode bookkeeping: which values need a gradient, and the gradients so
/// far. Contributions to a value are summed in the order of the calls of add.
class Tape {
public:
  explicit Tape(mlir::OpBuilder &builder) : builder(builder) {}

  mlir::OpBuilder &getBuilder() { return builder; }
  /// Returns the gradient of a value so far; null if there is none.
  mlir::Value lookup(mlir::Value value) const {
    return gradients.lookup(value);
  }
  /// Returns and forgets the gradient; later contributions start from zero.
  mlir::Value take(mlir::Value value);
  /// True if a trainable parameter is upstream of `value`.
  bool needs(mlir::Value value) const { return wanted.contains(value); }
  void want(mlir::Value value) { wanted.insert(value); }
  /// Adds to the gradient of `value`, if it needs one.
  void add(mlir::Value value, mlir::Value gradient);

private:
  mlir::OpBuilder &builder;
  llvm::DenseMap<mlir::Value, mlir::Value> gradients;
  llvm::DenseSet<mlir::Value> wanted;
};

/// Creates a row op that yields zeros.
mlir::Value buildZeros(mlir::OpBuilder &builder, mlir::Location loc,
                       mlir::RankedTensorType type);

/// Attaches the rules of ModelGradients.cpp to the model's ops.
void registerModelGradients(mlir::DialectRegistry &registry);

/// The rule of every weighted matmul that has its product as a result: x gets a
/// `model.linear` of dy, the weight a `train.linear_weight_grad`.
void buildProductGradient(model::WeightedMatmul product, Tape &tape);

/// Differentiates the row region for the operands that need it. The gradient of
/// a `column` operand is formed for every row and then summed.
llvm::LogicalResult buildRowsGradient(model::RowOp op, Tape &tape);

/// Writes the reverse of a row region: `arguments` are the forward row's
/// arguments, `resultGradients` one row per result (null: none). Returns one
/// row (or number) per argument, null for no gradient. Emits an error on
/// `op` for arithmetic without a rule.
llvm::FailureOr<llvm::SmallVector<mlir::Value>>
buildRowGradient(mlir::Operation *op, mlir::OpBuilder &builder,
                 mlir::ValueRange arguments,
                 llvm::ArrayRef<mlir::Value> resultGradients);

} // namespace qlora::train

#include "dialects/Train/TrainInterfaces.h.inc"
#define GET_OP_CLASSES
#include "dialects/Train/TrainOps.h.inc"

namespace qlora::train {

/// Return whether steps of a kind process rows of tokens, or generate.
inline bool isGeneration(StepKind kind) {
  return kind == StepKind::Prefill || kind == StepKind::Decode;
}
inline bool hasRows(StepKind kind) {
  return kind == StepKind::Accumulate || kind == StepKind::Evaluate ||
         isGeneration(kind);
}

/// Returns whether a module has steps of generation, and none of training. It
/// has no gradients and no optimizer states then.
inline bool onlyGenerates(mlir::ModuleOp module) {
  const auto isOfTraining = [](StepOp step) {
    return !isGeneration(step.getKind()) &&
           step.getKind() != StepKind::Initialize;
  };
  return !module.getOps<StepOp>().empty() &&
         llvm::none_of(module.getOps<StepOp>(), isOfTraining);
}

} // namespace qlora::train

#endif // QLORA_DIALECTS_TRAIN_TRAIN_H
