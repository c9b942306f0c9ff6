// SPDX-License-Identifier: MIT

// The demo module's tables as vectors, which tests may change.

#ifndef QLORA_TESTS_RUNTIME_DEMOTABLES_H
#define QLORA_TESTS_RUNTIME_DEMOTABLES_H

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "runtime/Kernels/KernelTable.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// Indices of the demo module's entries and arenas.
enum DemoEntry { kDemoEvaluate, kDemoAccumulate, kDemoUpdate };
enum DemoArena {
  kDemoFrozen,
  kDemoTrainable,
  kDemoGradient,
  kDemoActivation,
  kDemoInput,
  kDemoResult
};

/// Returns the kernel table's entry for the row `name` of Kernels.def.
inline qlora_kernel libraryKernel(const char *name, uint32_t operands,
                                  uint32_t constants) {
  qlora_kernel kernel{};
  kernel.name = name;
  kernel.operand_count = operands;
  kernel.constant_count = constants;
  return kernel;
}

class DemoTables {
public:
  DemoTables() {
    auto opened = LoadedModule::open(QLORA_DEMO_MODULE);
    EXPECT_TRUE(opened.isOk()) << opened.status().message();
    source.emplace(std::move(opened).value());
    header = source->table();
    auto copy = [](auto &to, const auto *from, uint32_t count) {
      to.assign(from, from + count);
    };
    copy(arenas, header.arenas, header.arena_count);
    copy(parameters, header.parameters, header.parameter_count);
    copy(kernels, header.kernels, header.kernel_count);
    copy(launches, header.launches, header.launch_count);
    copy(operands, header.operands, header.operand_count);
    copy(constants, header.constants, header.constant_count);
    copy(commands, header.commands, header.command_count);
    copy(entries, header.entries, header.entry_count);
    copy(bindings, header.bindings, header.binding_count);
    copy(images, header.images, header.image_count);
  }

  /// Makes the module a CUDA program. Each kernel's symbol is its name. Each
  /// block has 32 threads and 4 rows. Each of two units has cubins for sm_80
  /// and sm_90, and PTX.
  void retarget() {
    static const uint8_t code[] = "code of a unit";
    header.target = QLORA_TARGET_CUDA;
    header.cuda_version = 12000;
    for (qlora_kernel &kernel : kernels) {
      kernel.function = nullptr;
      kernel.symbol = kernel.name;
      kernel.threads = 32;
      kernel.rows_per_block = 4;
    }
    for (uint32_t unit : {0u, 1u}) {
      images.push_back({code, sizeof code, unit, QLORA_IMAGE_CUBIN, 80, 0});
      images.push_back({code, sizeof code, unit, QLORA_IMAGE_CUBIN, 90, 0});
      images.push_back({code, sizeof code, unit, QLORA_IMAGE_PTX, 80, 0});
    }
  }

  /// Returns a module of these tables, which must outlive the module.
  const qlora_module &table() {
    header.arenas = arenas.data();
    header.parameters = parameters.data();
    header.kernels = kernels.data();
    header.launches = launches.data();
    header.operands = operands.data();
    header.constants = constants.data();
    header.commands = commands.data();
    header.entries = entries.data();
    header.bindings = bindings.data();
    header.images = images.data();
    header.arena_count = static_cast<uint32_t>(arenas.size());
    header.parameter_count = static_cast<uint32_t>(parameters.size());
    header.kernel_count = static_cast<uint32_t>(kernels.size());
    header.launch_count = static_cast<uint32_t>(launches.size());
    header.operand_count = static_cast<uint32_t>(operands.size());
    header.constant_count = static_cast<uint32_t>(constants.size());
    header.command_count = static_cast<uint32_t>(commands.size());
    header.entry_count = static_cast<uint32_t>(entries.size());
    header.binding_count = static_cast<uint32_t>(bindings.size());
    header.image_count = static_cast<uint32_t>(images.size());
    return header;
  }

  /// Checks the tables and returns them as a loaded module.
  StatusOr<LoadedModule> load() {
    return LoadedModule::fromTable(table(), "demo");
  }

  qlora_module header{};
  std::vector<qlora_arena> arenas;
  std::vector<qlora_parameter> parameters;
  std::vector<qlora_kernel> kernels;
  std::vector<qlora_launch> launches;
  std::vector<qlora_operand> operands;
  std::vector<int64_t> constants;
  std::vector<qlora_command> commands;
  std::vector<qlora_entry> entries;
  std::vector<qlora_binding> bindings;
  std::vector<qlora_image> images;

private:
  std::optional<LoadedModule> source; ///< keeps strings and code mapped
};

/// Makes two modules the stages of one pipeline; `first` is the loaded module.
inline void followEachOther(DemoTables &first, DemoTables &second) {
  first.header.mesh.pp = second.header.mesh.pp = 2;
  second.header.stage = 1;
  first.header.next_stage = &second.table();
}

/// Gives each of two context-parallel ranks half of every sequence.
inline void shareLines(DemoTables &tables) {
  tables.header.mesh.cp = 2;
  for (qlora_binding &binding : tables.bindings)
    if (binding.kind <= QLORA_INPUT_LENGTHS ||
        binding.kind == QLORA_RESULT_CORRECT)
      binding.bytes /= 2;
}

/// Replaces ACCUMULATE_LAST by one command: forward attention of 128 tokens
/// with one head of 8, implemented by the row `row` of Kernels.def.
inline void addAttention(DemoTables &tables, const char *row) {
  const KernelOp &op = *findKernelOp("attention");
  const auto operands = uint32_t(op.operands.size()),
             constants = uint32_t(op.constants.size());
  qlora_command command{};
  command.kind = QLORA_COMMAND_LAUNCH;
  command.operand_count = uint16_t(operands);
  command.target = uint32_t(tables.launches.size());
  command.first_operand = uint32_t(tables.operands.size());
  tables.launches.push_back({"attention", uint32_t(tables.kernels.size()),
                             uint32_t(tables.constants.size()), constants, 0,
                             0});
  tables.kernels.push_back(libraryKernel(row, operands, constants));
  std::vector<int64_t> values(constants, 8); // dim, strides
  for (const char *one : {"batch", "heads", "kv_heads", "slots"})
    values[op.constantIndex(one)] = 1;
  values[op.constantIndex("length")] = 128;
  values[op.constantIndex("window")] = 0;
  values[op.constantIndex("cap")] = 0;
  tables.constants.insert(tables.constants.end(), values.begin(),
                          values.end());
  tables.arenas[kDemoActivation].bytes = 1 << 16;
  tables.arenas[kDemoActivation].alignment = 256;
  for (const KernelOperand &operand : op.operands) {
    qlora_operand range{};
    range.arena = kDemoActivation;
    range.dtype = operand.name == "lse" ? QLORA_DTYPE_F32 : QLORA_DTYPE_BF16;
    range.access = operand.isWritten ? QLORA_WRITE : QLORA_READ;
    range.bytes = operand.isOptional ? 0 : 4096;
    tables.operands.push_back(range);
  }
  qlora_entry &last = tables.entries[kDemoAccumulate];
  last.first_command = uint32_t(tables.commands.size());
  last.command_count = 1;
  last.event_count = 0;
  tables.commands.push_back(command);
}

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_DEMOTABLES_H
