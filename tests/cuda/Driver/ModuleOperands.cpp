// SPDX-License-Identifier: MIT

// Reads the tables of train.so without checks, because the runtime checks them.

#include "tests/cuda/Driver/ModuleOperands.h"

#include "tests/cuda/Driver/Memory.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace qlora::platform {

const ModuleOperands *ModuleOperands::get() {
  static const char *path = std::getenv("QLORA_TEST_CUDA_MODULE");
  static const std::unique_ptr<const ModuleOperands> operands(
      path ? new ModuleOperands(path) : nullptr);
  return operands.get();
}

ModuleOperands::ModuleOperands(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const auto query = reinterpret_cast<qlora_module_query_function>(
      library ? dlsym(library, QLORA_MODULE_QUERY) : nullptr);
  table = query ? query(QLORA_ABI_VERSION) : nullptr;
  if (!table) {
    fmt::print(stderr, "cuda-platform: QLORA_TEST_CUDA_MODULE={}: {}\n", path,
               library ? "no module of this version" : dlerror());
    std::_Exit(2);
  }
  for (uint32_t i = 0; i < table->command_count; ++i) {
    const qlora_command &command = table->commands[i];
    const bool isCopy = command.kind == QLORA_COMMAND_COPY;
    if (!isCopy && command.kind != QLORA_COMMAND_LAUNCH)
      continue;
    const char *symbol =
        isCopy ? nullptr
               : table->kernels[table->launches[command.target].kernel].symbol;
    if (symbol)
      commands[symbol].push_back(&command);
    else // a library kernel, or a copy of what a library kernel wrote
      for (uint32_t j = 0; j < command.operand_count; ++j)
        ofLibraries.push_back(&table->operands[command.first_operand + j]);
  }
}

static OperandUse useOf(const qlora_operand &operand, char *address) {
  const bool isWord =
      operand.dtype == QLORA_DTYPE_F32 || operand.dtype == QLORA_DTYPE_I32;
  const bool isHalf =
      operand.dtype == QLORA_DTYPE_BF16 || operand.dtype == QLORA_DTYPE_F16;
  if (!isWord && !isHalf && operand.access == QLORA_WRITE)
    return {address, size_t(operand.bytes), QLORA_READ_WRITE, 1};
  return {address, size_t(operand.bytes), operand.access,
          size_t(isWord ? 4 : 2)};
}

std::vector<OperandUse>
ModuleOperands::findGenerated(const qlora_command &command,
                              const qlora_cuda_args &args) const {
  const qlora_launch &launch = table->launches[command.target];
  const int64_t *constants = table->constants + launch.first_constant;
  if (launch.rows != args.rows ||
      !std::equal(constants, constants + launch.constant_count, args.constants))
    return {};
  std::vector<OperandUse> uses;
  for (uint32_t i = 0; i < command.operand_count; ++i) {
    const qlora_operand &operand = table->operands[command.first_operand + i];
    auto *const address = static_cast<char *>(args.buffers[i]);
    const Allocation *arena = address ? findMemory(address) : nullptr;
    const bool isPlace =
        operand.bytes == 0
            ? !address
            : arena && arena->bytes == table->arenas[operand.arena].bytes &&
                  address == arena->base + operand.offset;
    if (!isPlace)
      return {};
    uses.push_back(useOf(operand, address));
  }
  return uses;
}

OperandUse ModuleOperands::findOfLibrary(char *address) const {
  const Allocation *arena = findMemory(address);
  if (!arena)
    return {};
  const auto offset = uint64_t(address - arena->base);
  uint64_t end = offset;
  for (const qlora_operand *operand : ofLibraries)
    if (table->arenas[operand->arena].bytes == arena->bytes &&
        operand->offset <= offset)
      end = std::max(end, operand->offset + operand->bytes);
  return {address, size_t(end - offset), QLORA_READ_WRITE, 1};
}

std::vector<OperandUse>
ModuleOperands::find(std::string_view symbol,
                     const qlora_cuda_args &args) const {
  const auto found = commands.find(symbol);
  if (found != commands.end()) {
    for (const qlora_command *command : found->second) {
      std::vector<OperandUse> uses = findGenerated(*command, args);
      if (!uses.empty())
        return uses;
    }
    return {};
  }
  std::vector<OperandUse> uses(QLORA_CUDA_MAX_OPERANDS, OperandUse{});
  for (int i = 0; i < QLORA_CUDA_MAX_OPERANDS; ++i) {
    if (!args.buffers[i])
      continue;
    uses[i] = findOfLibrary(static_cast<char *>(args.buffers[i]));
    if (!uses[i].bytes)
      return {};
  }
  return uses;
}

} // namespace qlora::platform
