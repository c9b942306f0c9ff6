// SPDX-License-Identifier: MIT

// Attaches derivative rules to ops: `Rules::apply(op, tape)` is the rule of
// every op that a file of rules names.

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
  /// True for results that depend on parameters of another pipeline stage.
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

/// Defined in ExchangeGradients.cpp.
void registerExchangeGradients(mlir::MLIRContext *context);

} // namespace qlora::train

#endif // QLORA_DIALECTS_TRAIN_GRADIENTRULES_H
