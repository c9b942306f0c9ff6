// SPDX-License-Identifier: MIT

// Whether the modules that options of adapters name are there. PEFT warns of
// some names that match nothing and passes over others; here each one is an
// error, since what is trained is not what was asked for. Shared by
// attach-adapters, attach-expert-adapters and train-weights.

#ifndef QLORA_COMPILER_GRAPH_TARGETNAMES_H
#define QLORA_COMPILER_GRAPH_TARGETNAMES_H

#include "compiler/Graph/Targets.h"
#include "dialects/Model/Model.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"

namespace qlora {

/// Paths of a model's modules, each list in the order of the model.
struct NamedModules {
  std::vector<std::string> adaptable; ///< linears and embeddings
  std::vector<std::string> experts;   ///< stacked weights, by their module names
  std::vector<std::string> others;    ///< other modules with a weight
  std::string head;      ///< the LM head, also one that is tied; may be empty
  std::string tiedTo;    ///< the module whose weight the head reads, if another
};

NamedModules findModules(mlir::ModuleOp root, mlir::func::FuncOp function);

/// Path of the LM head, which its op has as its location's name; empty without
/// one.
std::string headPath(mlir::ModuleOp root);

/// Names of modules that the folder has beside the text model, such as
/// vision_tower.
llvm::SmallVector<llvm::StringRef> untrainedParts(mlir::ModuleOp root);

/// What decides which modules get an adapter.
struct TargetChoice {
  const Targets &targets;
  const std::vector<std::string> &saved; ///< modules_to_save
  const Targets *excluded;               ///< null: none
  llvm::StringRef text, excludedText;    ///< as options have them
};

/// Errors where a target names the LM head, no module at all, one that is saved,
/// or one without adapters; where an exclusion or a layer matches nothing.
mlir::LogicalResult checkTargetNames(mlir::ModuleOp root,
                                     const NamedModules &modules,
                                     const TargetChoice &choice);

/// An error where a key of `patterns`, the value of `option`, matches none of
/// `adapted`, the paths of modules with an adapter.
mlir::LogicalResult checkPatternNames(mlir::ModuleOp root,
                                      llvm::StringRef option,
                                      const ValuePatterns &patterns,
                                      const std::vector<std::string> &adapted);

/// " Did you mean 'q_proj'?", or else the last names of all modules.
std::string nameHint(const std::string &name,
                     const std::vector<std::string> &modules);

} // namespace qlora

#endif // QLORA_COMPILER_GRAPH_TARGETNAMES_H
