// SPDX-License-Identifier: MIT

// Reads model.mlir so that every diagnostic has a location in it. Reports other
// kinds of files by name.

#ifndef QLORA_TOOLS_QLORACC_READMODEL_H
#define QLORA_TOOLS_QLORACC_READMODEL_H

#include <memory>
#include <string>

#include "llvm/Support/SourceMgr.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

#include "runtime/Base/Status.h"

namespace qlora {

/// Opens the file, or standard input (`-`). Folders, programs, weights, JSON,
/// YAML and empty files are errors that describe the fix.
StatusOr<std::unique_ptr<llvm::MemoryBuffer>>
openModel(const std::string &path);

/// Parses and verifies the main buffer of `sources`, text or bytecode. If the
/// text names an op (`loc("model.layers.0.mlp")`), the op keeps its name and
/// also gets file, line and column. Returns null after errors, which are
/// diagnostics of the context.
mlir::OwningOpRef<mlir::ModuleOp> readModel(const llvm::SourceMgr &sources,
                                            mlir::MLIRContext &context);

} // namespace qlora

#endif // QLORA_TOOLS_QLORACC_READMODEL_H
