// SPDX-License-Identifier: MIT

// The tables of a program (runtime/ABI/module.h) in memory: what train.so has,
// except the addresses of generated functions, device images, the recorded
// options and the plan. EmitModule.h writes them; the cost model prices them
// (CommandPrice.h), so the compiler and the runtime predict the same times.
//
// Tables keep the order of the module's ops. Equal strings, constants and
// launches are stored once.

#ifndef QLORA_COMPILER_CODEGEN_MODULETABLES_H
#define QLORA_COMPILER_CODEGEN_MODULETABLES_H

#include <set>
#include <string>
#include <vector>

#include "compiler/Codegen/KernelSpelling.h"
#include "dialects/Program/Program.h"
#include "runtime/ABI/module.h"

namespace qlora {

/// Movable; `header` and rows refer to the other members.
struct ModuleTables {
  /// Makes the tables of `program`. Emits an error for values that do not fit
  /// into a table. All buffers must have an offset, and all library kernels an
  /// implementation.
  static llvm::FailureOr<ModuleTables> of(mlir::ModuleOp program,
                                          const KernelSpelling &spelling);
  ModuleTables(ModuleTables &&) = default;
  ModuleTables &operator=(ModuleTables &&) = default;

  /// Returns a copy of `text` that lives as long as the tables.
  const char *text(llvm::StringRef text) {
    return allTexts.insert(text.str()).first->c_str();
  }
  const std::set<std::string> &texts() const { return allTexts; }

  qlora_module header;
  std::vector<qlora_arena> arenas;
  std::vector<qlora_parameter> parameters;
  std::vector<qlora_kernel> kernels;
  std::vector<qlora_launch> launches;
  std::vector<qlora_operand> operands;
  std::vector<int64_t> constants;
  std::vector<qlora_command> commands;
  std::vector<qlora_entry> entries;
  std::vector<qlora_binding> bindings;
  /// Name of each kernel's C function on a CPU, else empty.
  std::vector<std::string> functions;

private:
  friend class TableBuilder;
  ModuleTables();
  std::set<std::string> allTexts;
};

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_MODULETABLES_H
