// SPDX-License-Identifier: MIT

// Tables of an entry's commands: operands, constants, launches, commands.

#ifndef QLORA_COMPILER_CODEGEN_COMMANDTABLES_H
#define QLORA_COMPILER_CODEGEN_COMMANDTABLES_H

#include <map>

#include "compiler/Codegen/AssemblyText.h"
#include "compiler/Codegen/RowOperands.h"
#include "dialects/Program/Program.h"
#include "runtime/ABI/module.h"

namespace qlora {

/// The bytes of a buffer or view in its arena, and their type.
struct BufferRange {
  uint32_t arena = 0; ///< index into the table of arenas
  uint64_t offset = 0, bytes = 0;
  uint32_t dtype = 0;
  uint32_t pieces = 0; ///< number of shards | qlora_group << 16; 0: unsharded
  uint64_t step = 0;   ///< bytes from one shard to the next
};

class CommandTables {
public:
  CommandTables(mlir::ModuleOp module, StringTable &strings)
      : symbols(module), strings(strings) {}

  std::map<program::Arena, uint32_t> arenaIndex; ///< in the table of arenas
  llvm::StringMap<uint32_t> kernelIndex;         ///< in the table of kernels

  WordTable launches{".Llaunches"}, operands{".Loperands"},
      constants{".Lconstants"}, commands{".Lcommands"};

  /// Adds the command for `op`. Does nothing for buffers, views and bindings.
  llvm::LogicalResult addCommand(mlir::Operation &op);

  llvm::FailureOr<uint32_t> arenaOf(mlir::Operation *op, program::Arena arena);
  llvm::FailureOr<BufferRange> rangeOf(mlir::Value buffer);
  /// Adds `values` to the table of constants, as consecutive rows, unless it
  /// has them already. Returns the index of the first row.
  uint32_t constantsOf(llvm::ArrayRef<int64_t> values);

private:
  llvm::LogicalResult addLaunch(program::LaunchOp op);
  /// Returns the kernel's row operands; empty for a library kernel.
  llvm::FailureOr<llvm::ArrayRef<RowOperand>> rowsOf(program::LaunchOp op);
  llvm::LogicalResult addAbsent(program::LaunchOp op, unsigned position);
  llvm::LogicalResult addOperand(mlir::Value buffer, qlora_access access,
                                 uint32_t dtype,
                                 const RowOperand *row = nullptr);
  llvm::LogicalResult addTransfer(mlir::Operation &op, qlora_command_kind kind,
                                  uint32_t target = 0, uint32_t collective = 0);
  void command(mlir::Operation &op, qlora_command_kind kind, uint32_t target,
               uint32_t firstOperand, uint32_t collective = 0);
  uint32_t launchOf(program::LaunchOp op, uint32_t kernel);

  mlir::SymbolTable symbols;
  StringTable &strings;
  std::map<std::vector<int64_t>, uint32_t> constantIndex;
  llvm::StringMap<llvm::SmallVector<RowOperand>> rowOperandsOf; ///< by kernel
  /// Index in `launches`, by label, kernel, first constant and row count.
  std::map<std::tuple<std::string, uint32_t, uint32_t, uint64_t>, uint32_t>
      launchIndex;
};

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_COMMANDTABLES_H
