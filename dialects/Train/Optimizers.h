// SPDX-License-Identifier: MIT

// The optimizer table, and the layout of optimizer state.
//
// A parameter names its optimizer in the attribute `optimizer`, which
// mark-trainable chooses from --optim. A row of the table has the optimizer's
// states and the op that computes an update. An optimizer updates in one of two
// ways (Optimizer::isByTensor):
//
//   by group    one row op updates all parameters with the same UpdateKind, as
//               rows of kFlatColumns elements; states have the same layout
//   by tensor   each tensor of PEFT has its own update, even if a parameter
//               stacks several: `train.update` with a kernel of Kernels.def, or
//               several ops (ComposedUpdates.cpp)
//
// If ranks shard the updates (axis zero1), each rank updates a shard
// of every group and keeps only its states (ZeRO stage 1, Rajbhandari et al.,
// 2020). Updates by tensor cannot be sharded.
//
// The state arena holds the states of all UpdatePieces, one after another. Each
// state of a tensor is a parameter of train.so, named TENSOR.STATE, with the
// role `state`. So plans, checkpoints and resumed runs include it.

#ifndef QLORA_DIALECTS_TRAIN_OPTIMIZERS_H
#define QLORA_DIALECTS_TRAIN_OPTIMIZERS_H

#include "dialects/Train/Train.h"

namespace qlora::train {

/// Unit of the tensor for which an optimizer keeps one value.
enum class StateExtent { Element, Row, Column, Block };

struct OptimizerState {
  llvm::StringLiteral name = ""; ///< name in the reference
  StateExtent extent = StateExtent::Element;
  bool isByte = false; ///< an 8-bit code, else f32
};

struct UpdatePiece;

struct Optimizer {
  llvm::StringLiteral name;
  /// A row op, or if `isByTensor`, the kernel of a `train.update`.
  llvm::StringLiteral op;
  bool isByTensor = false;
  OptimizerState states[4] = {}; ///< ends at the first without a name
  /// Row op that computes the averaged parameters, which evaluation and saving
  /// use, from p and the first state; with `back` it restores p. Empty: p
  /// itself is used.
  llvm::StringLiteral average = "";
  /// If `isByTensor` and `op` is empty: builds the ops that compute the new p
  /// and states from p, states, gradient and scale.
  llvm::SmallVector<mlir::Value> (*build)(mlir::OpBuilder &,
                                          const UpdatePiece &,
                                          mlir::ValueRange) = nullptr;

  llvm::ArrayRef<OptimizerState> getStates() const;
};

/// Returns the row of the table with this name; nullptr if there is none.
const Optimizer *findOptimizer(llvm::StringRef name);

/// Returns the optimizer of a tensor; nullptr for an unknown option.
const Optimizer *chooseOptimizer(llvm::StringRef option,
                                 llvm::ArrayRef<int64_t> shape);

/// The values that one update op changes: a group's rows, or one tensor.
struct UpdatePiece {
  struct State {
    mlir::RankedTensorType type;
    int64_t offset; ///< bytes in the state arena
  };
  UpdateKind kind;
  mlir::FlatSymbolRefAttr parameter; ///< by tensor: contains the tensor
  std::string name;                  ///< by tensor: the tensor's name
  int64_t row = 0; ///< first row in the flat arenas; by tensor: in `parameter`
  mlir::RankedTensorType type; ///< [rows, columns] f32
  int64_t pieces = 1; ///< by group: shards of `type`, one per rank
  llvm::SmallVector<State> states;
};

struct UpdatePlan {
  llvm::SmallVector<UpdatePiece> pieces;
  int64_t stateBytes = 0;
};
UpdatePlan planUpdate(mlir::Operation *module);

/// One of the tensors stacked in a parameter, or the parameter itself. `row` is
/// the tensor's first row in the parameter.
struct ParameterPart {
  llvm::StringRef name;
  int64_t row;
  llvm::SmallVector<int64_t> shape;
};
llvm::SmallVector<ParameterPart> partsOf(model::ParameterOp parameter);

// Functions for Optimizer::build.
llvm::SmallVector<mlir::Value> buildAdafactor(mlir::OpBuilder &b,
                                              const UpdatePiece &piece,
                                              mlir::ValueRange operands);
llvm::SmallVector<mlir::Value> buildAdafactorVector(mlir::OpBuilder &b,
                                                    const UpdatePiece &piece,
                                                    mlir::ValueRange operands);
llvm::SmallVector<mlir::Value> buildMuon(mlir::OpBuilder &b,
                                         const UpdatePiece &piece,
                                         mlir::ValueRange operands);

} // namespace qlora::train

#endif // QLORA_DIALECTS_TRAIN_OPTIMIZERS_H
