// SPDX-License-Identifier: MIT

// Checks that the modules named in adapter options exist. PEFT warns about some
// names without a match and ignores others. Here each is an error, so that a
// misspelled name cannot change which weights are trained. Shared by
// attach-adapters, attach-expert-adapters and mark-trainable.

#ifndef QLORA_COMPILER_ADAPT_ADAPTERTARGETCHECKS_H
#define QLORA_COMPILER_ADAPT_ADAPTERTARGETCHECKS_H

#include "dialects/Model/Model.h"
#include "runtime/Options/AdapterTargets.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"

namespace qlora {

/// Paths of a model's modules, each list in model order.
struct NamedModules {
  std::vector<std::string> adaptable; ///< linears and embeddings
  std::vector<std::string> experts;   ///< stacked weights, by module name
  std::vector<std::string> others;    ///< other modules with a weight
  std::string head;      ///< LM head, tied or not; may be empty
  std::string tiedTo;    ///< module whose weight the head shares, if any
};

NamedModules findModules(mlir::ModuleOp root, mlir::func::FuncOp function);

/// Returns the LM head's path, the name in its op's location; empty if none.
std::string headPath(mlir::ModuleOp root);

/// Returns names of modules in the model's files that are outside the text
/// model, such as vision_tower.
llvm::SmallVector<llvm::StringRef> untrainedParts(mlir::ModuleOp root);

/// The options that select modules for adapters.
struct TargetChoice {
  const Targets &targets;
  const std::vector<std::string> &saved; ///< modules_to_save
  const Targets *excluded;               ///< null: none
  llvm::StringRef text, excludedText;    ///< as in the options
};

/// Fails if a target names the LM head, no module, a module in modules_to_save,
/// or one without adapter support; or if an exclusion or layer has no match.
mlir::LogicalResult checkTargetNames(mlir::ModuleOp root,
                                     const NamedModules &modules,
                                     const TargetChoice &choice);

/// Fails if a key of `patterns`, the value of `option`, matches none of
/// `adapted`, the paths of modules with an adapter.
mlir::LogicalResult checkPatternNames(mlir::ModuleOp root,
                                      llvm::StringRef option,
                                      const ValuePatterns &patterns,
                                      const std::vector<std::string> &adapted);

/// Returns "did you mean 'q_proj'?", or "there are: " and modules' short names.
std::string nameHint(const std::string &name,
                     const std::vector<std::string> &modules);

} // namespace qlora

#endif // QLORA_COMPILER_ADAPT_ADAPTERTARGETCHECKS_H
