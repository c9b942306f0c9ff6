// SPDX-License-Identifier: MIT

// Optimizers as a table, and what they keep.
//
// A parameter names its row in the attribute `optimizer`, which train-weights
// chooses by --optim. A row says which op makes the update and what it keeps;
// from that follow the pieces that are updated by one op each:
//
//   by group    all parameters that are updated alike, as rows of kFlatColumns
//               elements, by a row op; states have the layout of the group
//   by tensor   each tensor as PEFT has it (a part, where several are stacked),
//               by `train.update` and a kernel of Kernels.def, or by several
//               ops (ComposedUpdates.cpp)
//
// Where ranks divide the updates (train.update_pieces), each makes a piece of
// every group and keeps the states of it alone (ZeRO stage 1, Rajbhandari et
// al., 2020); what is updated by tensor cannot be divided.
//
// and the state arena: what every piece keeps, one after the other. A state of
// a tensor is a parameter of train.so, TENSOR.STATE with the role `state`, so
// that plans, checkpoints and resumed runs have it without being told.

#ifndef QLORA_DIALECTS_TRAIN_OPTIMIZERS_H
#define QLORA_DIALECTS_TRAIN_OPTIMIZERS_H

#include "dialects/Train/Train.h"

namespace qlora::train {

/// Of what an optimizer keeps one number.
enum class StateExtent { Element, Row, Column, Block };

struct OptimizerState {
  llvm::StringLiteral name = ""; ///< as the reference calls it
  StateExtent extent = StateExtent::Element;
  bool isByte = false; ///< a code; else f32
};

struct UpdatePiece;

struct Optimizer {
  llvm::StringLiteral name;
  /// A row op, or by tensor the kernel of a `train.update`.
  llvm::StringLiteral op;
  bool isByTensor = false;
  OptimizerState states[4] = {}; ///< up to one without a name
  /// Where p is not what is used: the row op of p and the first state that
  /// makes that of it, and with `back` p again.
  llvm::StringLiteral average = "";
  /// In place of an op, by tensor: ops for the new p and states, of p, states,
  /// gradient and scale.
  llvm::SmallVector<mlir::Value> (*build)(mlir::OpBuilder &,
                                          const UpdatePiece &,
                                          mlir::ValueRange) = nullptr;

  llvm::ArrayRef<OptimizerState> getStates() const;
};

/// nullptr where there is none.
const Optimizer *findOptimizer(llvm::StringRef name);

/// The row of a tensor with --optim; nullptr where the option has none.
const Optimizer *chooseOptimizer(llvm::StringRef option,
                                 llvm::ArrayRef<int64_t> shape);

/// What one op updates.
struct UpdatePiece {
  struct State {
    mlir::RankedTensorType type;
    int64_t offset; ///< bytes in the state arena
  };
  UpdateKind kind;
  mlir::FlatSymbolRefAttr parameter; ///< by tensor, that it is in
  std::string name;                  ///< of the tensor
  int64_t row = 0; ///< of the flat arenas, or of the parameter
  mlir::RankedTensorType type; ///< [rows, columns] f32
  int64_t pieces = 1; ///< of so many rows each, one for a rank; by group
  llvm::SmallVector<State> states;
};

struct UpdatePlan {
  llvm::SmallVector<UpdatePiece> pieces;
  int64_t stateBytes = 0;
};
UpdatePlan planUpdate(mlir::Operation *module);

/// The tensors that a parameter is: itself, or what is stacked, each with its
/// first row and its shape.
struct ParameterPart {
  llvm::StringRef name;
  int64_t row;
  llvm::SmallVector<int64_t> shape;
};
llvm::SmallVector<ParameterPart> partsOf(model::ParameterOp parameter);

// Optimizer::build.
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
