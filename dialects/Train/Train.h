// SPDX-License-Identifier: MIT

// The train dialect: the one header to include. The essay is in TrainOps.td.

#ifndef QLORA_DIALECTS_TRAIN_TRAIN_H
#define QLORA_DIALECTS_TRAIN_TRAIN_H

#include "dialects/Model/Model.h"
#include "mlir/IR/IRMapping.h"

#include "dialects/Train/TrainDialect.h.inc"
#include "dialects/Train/TrainEnums.h.inc"
#define GET_ATTRDEF_CLASSES
#include "dialects/Train/TrainAttrs.h.inc"

namespace qlora::train {

/// Columns of the flat arenas as matrices; also the size of the statistics
/// row at the start of the gradient arena.
inline constexpr int64_t kFlatColumns = 1024;
/// What the runtime can write for a step, as enum qlora_binding_kind: i32 [B, T],
/// but of lines f32 [B].
inline constexpr llvm::StringLiteral kStepInputs[] = {
    "ids",     "targets", "positions", "segments",
    "prompts", "lengths", "desirable"};
inline constexpr llvm::StringLiteral kLineInput = "desirable";
/// Elements of the statistics row, in their order: what adds up over the
/// micro-batches and ranks of a step.
inline constexpr llvm::StringLiteral kStatistics[] = {
    "loss_sum",         "label_count", "chosen_rewards",
    "rejected_rewards", "right_pairs", "chosen_logps",
    "rejected_logps",   "chosen_count", "divergence",
    "router_loss"};

/// Parameters start at multiples of this many elements in a flat arena.
inline constexpr int64_t kFlatAlignment = 16;

struct Optimizer; ///< Optimizers.h

/// How a trained parameter is updated, beside what is the same for all. What
/// ranks hold pieces of is apart, behind all else: its gradients are added up
/// over other ranks.
struct UpdateKind {
  bool isDivided = false;
  const Optimizer *optimizer = nullptr; ///< of one table
  double rateScale = 1; ///< times the learning rate
  bool isUndecayed = false;

  auto operator<=>(const UpdateKind &) const = default;
};

UpdateKind updateKindOf(model::ParameterOp parameter);

/// Of a module: among how many ranks its updates are divided; 1: among none.
inline constexpr llvm::StringLiteral kUpdatePiecesAttr = "train.update_pieces";
int64_t updatePiecesOf(mlir::Operation *module);

/// Of a module: how many ranks a run has; 0: any number.
inline constexpr llvm::StringLiteral kRunRanksAttr = "train.run_ranks";
int64_t runRanksOf(mlir::Operation *module);

/// Rows of the flat arenas, behind the statistics, whose parameters are updated
/// alike; each of the ranks that divide the updates, or all sums, has as many.
struct FlatGroup {
  UpdateKind kind;
  int64_t row = 0;
  int64_t rows = 0;
};

/// Groups by kind, each of whole rows. Does not depend on the order of the
/// parameters.
llvm::SmallVector<FlatGroup> flatGroups(mlir::Operation *module);

/// Elements of the flat arenas: the statistics row and all groups.
int64_t flatElements(mlir::Operation *module);
/// Elements of a parameter, or of a rank's piece of it, with what aligns the next
/// one.
int64_t flatElements(model::ParameterOp parameter);

/// Reverse-mode bookkeeping: which values need a gradient, and what has been
/// contributed so far. Contributions to a value are added in the order they
/// are made.
class Tape {
public:
  explicit Tape(mlir::OpBuilder &builder) : builder(builder) {}

  mlir::OpBuilder &getBuilder() { return builder; }
  /// The gradient of a value so far; null where nothing flowed.
  mlir::Value lookup(mlir::Value value) const {
    return gradients.lookup(value);
  }
  /// The same, which is then forgotten; what comes later starts anew.
  mlir::Value take(mlir::Value value);
  /// True where a trainable parameter is upstream of `value`.
  bool needs(mlir::Value value) const { return wanted.contains(value); }
  void want(mlir::Value value) { wanted.insert(value); }
  /// Adds a contribution, if `value` needs one.
  void add(mlir::Value value, mlir::Value gradient);

private:
  mlir::OpBuilder &builder;
  llvm::DenseMap<mlir::Value, mlir::Value> gradients;
  llvm::DenseSet<mlir::Value> wanted;
};

/// A row op that makes zeros.
mlir::Value buildZeros(mlir::OpBuilder &builder, mlir::Location loc,
                       mlir::RankedTensorType type);

/// Attaches the rules of ModelGradients.cpp to the model's ops.
void registerModelGradients(mlir::DialectRegistry &registry);

/// The rule of every product with a weight that has a value: what flows to x
/// is a `model.linear` of dy, to the weight a `train.linear_weight_grad`.
void buildProductGradient(model::WeightedProduct product, Tape &tape);

/// Writes the reverse of a row region: `arguments` are the forward row's
/// arguments, `resultGradients` one row per result (null: none). Returns one
/// row (or number) per argument, null where nothing flows. Emits an error on
/// `op` for arithmetic without a rule.
llvm::FailureOr<llvm::SmallVector<mlir::Value>>
buildRowGradient(mlir::Operation *op, mlir::OpBuilder &builder,
                 mlir::ValueRange arguments,
                 llvm::ArrayRef<mlir::Value> resultGradients);

} // namespace qlora::train

#include "dialects/Train/TrainInterfaces.h.inc"
#define GET_OP_CLASSES
#include "dialects/Train/TrainOps.h.inc"

#endif // QLORA_DIALECTS_TRAIN_TRAIN_H
