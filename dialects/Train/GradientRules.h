// SPDX-License-Identifier: MIT

// How a file of derivative rules gives them to ops: `Rules::apply(op, tape)` is
// the rule of every op that it names.

#ifndef QLORA_DIALECTS_TRAIN_GRADIENTRULES_H
#define QLORA_DIALECTS_TRAIN_GRADIENTRULES_H

#include "dialects/Train/Train.h"

namespace qlora::train {

template <typename Rules, typename Op>
struct RuleOf
    : Differentiable::template ExternalModel<RuleOf<Rules, Op>, Op> {
  llvm::LogicalResult buildGradient(mlir::Operation *op, Tape &tape) const {
    return Rules::apply(llvm::cast<Op>(op), tape);
  }
  /// What a stage trains may flow in from another one.
  bool isWanted(mlir::Operation *op, unsigned result) const {
    if constexpr (requires(Op rule) { rule.isWanted(result); })
      return llvm::cast<Op>(op).isWanted(result);
    return false;
  }
};

template <typename Rules, typename... Ops>
void attachRules(mlir::MLIRContext *context) {
  (Ops::template attachInterface<RuleOf<Rules, Ops>>(*context), ...);
}

/// ExchangeGradients.cpp.
void registerExchangeGradients(mlir::MLIRContext *context);

} // namespace qlora::train

#endif // QLORA_DIALECTS_TRAIN_GRADIENTRULES_H
