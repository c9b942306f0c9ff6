// SPDX-License-Identifier: MIT

// Which bytes a kernel may touch, from the tables of the train.so that
// QLORA_TEST_CUDA_MODULE names. An arena is an allocation of the arena's size;
// a generated kernel is known by its symbol, constants, rows and the places of
// its operands; for a library's device function, whose arguments the tables do
// not say, an address may reach to the end of the longest operand of a library
// kernel that holds it.

#ifndef QLORA_TESTS_CUDA_DRIVER_MODULEOPERANDS_H
#define QLORA_TESTS_CUDA_DRIVER_MODULEOPERANDS_H

#include "runtime/ABI/module.h"

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace qlora::platform {

/// What a kernel may touch through one of its addresses.
struct OperandUse {
  char *begin;
  size_t bytes;
  int access;          ///< enum qlora_access
  size_t elementBytes; ///< 4 or 2; operands of single bytes are read and written
};

class ModuleOperands {
public:
  /// Null where no test asks for it.
  static const ModuleOperands *get();

  bool isGenerated(std::string_view symbol) const {
    return commands.count(symbol) != 0;
  }
  /// Per buffer of the arguments; bytes is 0 where it is absent. Empty where
  /// no command has these arguments, or an address is in no operand.
  std::vector<OperandUse> find(std::string_view symbol,
                               const qlora_cuda_args &args) const;

private:
  explicit ModuleOperands(const char *path);
  std::vector<OperandUse> findGenerated(const qlora_command &command,
                                        const qlora_cuda_args &args) const;
  OperandUse findOfLibrary(char *address) const;

  const qlora_module *table = nullptr;
  /// LAUNCH commands by the symbol of their kernel.
  std::map<std::string, std::vector<const qlora_command *>, std::less<>>
      commands;
  /// Operands of library kernels.
  std::vector<const qlora_operand *> ofLibraries;
};

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_DRIVER_MODULEOPERANDS_H
