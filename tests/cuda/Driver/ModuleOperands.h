// SPDX-License-Identifier: MIT

// Finds the bytes that a kernel may touch, in the tables of the train.so in
// QLORA_TEST_CUDA_MODULE. An arena of the tables is the allocation with the
// same size.
//
// Generated kernels: the launch in the tables has the same symbol, constants,
// rows and operand addresses. Its operands give the ranges.
//
// Library device functions: the tables do not list their arguments. Several
// operands of library launches may contain an argument's address. The range
// starts at this address and ends at the largest end of these operands.

#ifndef QLORA_TESTS_CUDA_DRIVER_MODULEOPERANDS_H
#define QLORA_TESTS_CUDA_DRIVER_MODULEOPERANDS_H

#include "runtime/ABI/module.h"

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace qlora::platform {

/// The range that a kernel may touch through one of its arguments.
struct OperandUse {
  char *begin;
  size_t bytes;
  int access; ///< enum qlora_access
  /// 4 or 2 if `access` is QLORA_WRITE; otherwise unused. Write-only operands
  /// with another element size count as QLORA_READ_WRITE.
  size_t elementBytes;
};

class ModuleOperands {
public:
  /// Returns the operands of the module that a test names; null if none does.
  static const ModuleOperands *get();

  bool isGenerated(std::string_view symbol) const {
    return commands.count(symbol) != 0;
  }
  /// Returns one use per buffer of the arguments; bytes is 0 for an absent
  /// buffer. Returns an empty list if no command has these arguments or if an
  /// address is in no operand.
  std::vector<OperandUse> find(std::string_view symbol,
                               const qlora_cuda_args &args) const;

private:
  explicit ModuleOperands(const char *path);
  std::vector<OperandUse> findGenerated(const qlora_command &command,
                                        const qlora_cuda_args &args) const;
  OperandUse findOfLibrary(char *address) const;

  const qlora_module *table = nullptr;
  /// LAUNCH commands, keyed by the symbol of their kernel.
  std::map<std::string, std::vector<const qlora_command *>, std::less<>>
      commands;
  /// Operands of library kernels and of copies.
  std::vector<const qlora_operand *> ofLibraries;
};

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_DRIVER_MODULEOPERANDS_H
