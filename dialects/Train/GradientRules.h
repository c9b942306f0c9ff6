// SPDX-License-Identifier: MIT

// Attaches derivative rules to ops. Each file of rules calls attachRules with
// its ops as types and a lambda that calls an op's rule.

#ifndef QLORA_DIALECTS_TRAIN_GRADIENTRULES_H
#define QLORA_DIALECTS_TRAIN_GRADIENTRULES_H

#include "dialects/Train/Train.h"

namespace qlora::train {

template <typename Rule, typename Op>
struct RuleOf : Differentiable::template ExternalModel<RuleOf<Rule, Op>, Op> {
  llvm::LogicalResult buildGradient(mlir::Operation *op, Tape &tape) const {
    return Rule()(llvm::cast<Op>(op), tape);
  }
  /// True for results that depend on parameters of another pipeline stage.
  bool isWanted(mlir::Operation *op, unsigned result) const {
    if constexpr (requires(Op rule) { rule.isWanted(result); })
      return llvm::cast<Op>(op).isWanted(result);
    return false;
  }
};

/// Attaches `rule(op, tape)`, a lambda without captures, to each of `Ops`.
template <typename... Ops, typename Rule>
void attachRules(mlir::MLIRContext *context, Rule /*rule*/) {
  (Ops::template attachInterface<RuleOf<Rule, Ops>>(*context), ...);
}

/// Attaches the rules of ExchangeGradients.cpp.
void registerExchangeGradients(mlir::MLIRContext *context);

} // namespace qlora::train

#endif // QLORA_DIALECTS_TRAIN_GRADIENTRULES_H
