// SPDX-License-Identifier: MIT

// The demo module's tables as vectors that a test may change.

#ifndef QLORA_TESTS_RUNTIME_DEMOTABLES_H
#define QLORA_TESTS_RUNTIME_DEMOTABLES_H

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "runtime/Core/ModuleLoader.h"

namespace qlora {

/// Entries, commands and operands of the demo module, by what they are.
enum DemoEntry { kDemoEvaluate, kDemoAccumulate, kDemoUpdate };
enum DemoArena {
  kDemoFrozen,
  kDemoTrainable,
  kDemoGradient,
  kDemoActivation,
  kDemoInput,
  kDemoResult
};

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
  }

  /// Checks the tables as they are now; they must outlive the result.
  StatusOr<LoadedModule> load() {
    header.arenas = arenas.data();
    header.parameters = parameters.data();
    header.kernels = kernels.data();
    header.launches = launches.data();
    header.operands = operands.data();
    header.constants = constants.data();
    header.commands = commands.data();
    header.entries = entries.data();
    header.bindings = bindings.data();
    header.arena_count = static_cast<uint32_t>(arenas.size());
    header.parameter_count = static_cast<uint32_t>(parameters.size());
    header.kernel_count = static_cast<uint32_t>(kernels.size());
    header.launch_count = static_cast<uint32_t>(launches.size());
    header.operand_count = static_cast<uint32_t>(operands.size());
    header.constant_count = static_cast<uint32_t>(constants.size());
    header.command_count = static_cast<uint32_t>(commands.size());
    header.entry_count = static_cast<uint32_t>(entries.size());
    header.binding_count = static_cast<uint32_t>(bindings.size());
    return LoadedModule::fromTable(header, "demo");
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

private:
  std::optional<LoadedModule> source; ///< keeps strings and code mapped
};

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_DEMOTABLES_H
