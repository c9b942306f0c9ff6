// SPDX-License-Identifier: MIT

// Every launch command of a module, ready to run: addresses resolved, library
// kernels chosen and prepared. Layers share kernels: commands with the same op,
// types, constants and workspace use one kernel. `Kernel` is LibraryKernel on a
// CPU and CudaKernel on a GPU.

#ifndef QLORA_RUNTIME_DEVICE_PREPAREDLAUNCHES_H
#define QLORA_RUNTIME_DEVICE_PREPAREDLAUNCHES_H

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/Device/Device.h"
#include "runtime/Kernels/KernelTable.h"
#include "runtime/Module/LaunchRequest.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// Identifies a prepared kernel. Launches with equal keys share a kernel.
using LaunchKey = std::vector<int64_t>;
LaunchKey launchKey(const LoadedModule &module, const qlora_command &command,
                    const KernelRequest &request);

/// Returns the addresses of operands; null for absent operands. `arenaBases`
/// are the arenas' addresses, on the device.
std::vector<void *> operandAddresses(std::span<const qlora_operand> operands,
                                     std::span<uint8_t *const> arenaBases);

/// Returns the planned row and later rows of the same op and target, except the
/// reference row. If `references` names the op, returns only the reference row.
std::vector<const KernelRow *>
candidateRows(const KernelRow &planned,
              std::span<const std::string> references = {});

/// Returns `refusal`, the error of the last candidate row, with a hint at
/// --reference-kernels if that option would help.
Status noRowLeft(const KernelRow &planned, const Status &refusal);

template <typename Kernel> class PreparedLaunches {
public:
  /// Prepares a row for a request with the given bytes of workspace. After
  /// kUnavailable the next row is tried.
  using Prepare = std::function<StatusOr<std::unique_ptr<Kernel>>(
      const KernelRow &, const KernelRequest &, uint64_t)>;

  /// Prepares all launches of `module`. `arenaBases` are the arenas'
  /// addresses, on the device. A row that is unavailable, or disabled by
  /// `options`, is replaced by the op's next row; a line in `remarks` gives the
  /// reason and the row that runs. A launch without a usable row is an error.
  /// Ops in `options.referenceKernels` run their plain references.
  Status prepare(const LoadedModule &module,
                 std::span<uint8_t *const> arenaBases,
                 const DeviceOptions &options, const Prepare &prepare,
                 std::vector<std::string> &remarks);

  /// Returns the library kernel of a command; nullptr for a generated kernel.
  Kernel *kernel(size_t commandIndex) const {
    return byCommand[commandIndex] ? byCommand[commandIndex]->kernel.get()
                                   : nullptr;
  }
  /// Returns the row that runs a launch; nullptr for a generated kernel.
  const KernelRow *row(uint32_t launch) const { return rowOfLaunch[launch]; }
  /// Returns the addresses of a command's operands; null if absent.
  std::span<void *const> buffers(const qlora_command &command) const {
    return std::span(addresses).subspan(command.first_operand,
                                        command.operand_count);
  }

private:
  /// One library kernel and its row of Kernels.def.
  struct Chosen {
    std::unique_ptr<Kernel> kernel;
    const KernelRow *row = nullptr;
  };

  /// The arguments of prepare().
  struct Job {
    const LoadedModule &module;
    const DeviceOptions &options;
    const Prepare &prepare;
    std::vector<std::string> &remarks;
  };

  StatusOr<const Chosen *> find(const Job &job, const qlora_command &command,
                                const KernelRow &planned);
  static StatusOr<Chosen> choose(const Job &job, const qlora_command &command,
                                 const KernelRow &planned,
                                 const KernelRequest &request);

  std::map<LaunchKey, Chosen> kernels;
  std::vector<const Chosen *> byCommand; ///< null for other commands
  std::vector<const KernelRow *> rowOfLaunch;
  std::vector<void *> addresses; ///< per operand of the module
};

template <typename Kernel>
auto PreparedLaunches<Kernel>::choose(const Job &job,
                                      const qlora_command &command,
                                      const KernelRow &planned,
                                      const KernelRequest &request)
    -> StatusOr<Chosen> {
  const std::string label = job.module.launches()[command.target].label;
  const uint64_t workspace = givenWorkspace(job.module, command, *planned.op);
  Status last;
  std::string passedOver;
  for (const KernelRow *row :
       candidateRows(planned, job.options.referenceKernels)) {
    last = checkLaunchRow(job.module, command, *row, request);
    if (last.isOk())
      last = checkEnabled(*row, job.options.disabledKernels)
                 .withContext(row->fullName());
    if (last.isOk()) {
      auto kernel = job.prepare(*row, request, workspace);
      if (kernel.isOk()) {
        if (!passedOver.empty())
          job.remarks.push_back(fmt::format("launch '{}': {}{} runs instead",
                                            label, passedOver,
                                            row->fullName()));
        return Chosen{std::move(kernel).value(), row};
      }
      last = kernel.status().withContext(row->fullName());
    }
    if (last.code() != StatusCode::kUnavailable)
      break;
    passedOver += last.message() + "; ";
  }
  return noRowLeft(planned, last)
      .withContext(fmt::format("launch '{}'", label));
}

template <typename Kernel>
auto PreparedLaunches<Kernel>::find(const Job &job,
                                    const qlora_command &command,
                                    const KernelRow &planned)
    -> StatusOr<const Chosen *> {
  const KernelRequest request = makeRequest(job.module, command, *planned.op);
  LaunchKey key = launchKey(job.module, command, request);
  const auto found = kernels.find(key);
  if (found == kernels.end()) {
    QLORA_ASSIGN_OR_RETURN(Chosen kernel,
                           choose(job, command, planned, request));
    return &kernels.emplace(std::move(key), std::move(kernel)).first->second;
  }
  // Commands share the kernel, but each has different operand sizes.
  const char *label = job.module.launches()[command.target].label;
  QLORA_RETURN_IF_ERROR(
      checkLaunchRow(job.module, command, *found->second.row, request)
          .withContext(fmt::format("launch '{}'", label)));
  return &found->second;
}

template <typename Kernel>
Status PreparedLaunches<Kernel>::prepare(const LoadedModule &module,
                                         std::span<uint8_t *const> arenaBases,
                                         const DeviceOptions &options,
                                         const Prepare &prepare,
                                         std::vector<std::string> &remarks) {
  const Job job = {module, options, prepare, remarks};
  addresses = operandAddresses(module.operands(), arenaBases);
  byCommand.assign(module.commands().size(), nullptr);
  rowOfLaunch.assign(module.launches().size(), nullptr);
  for (size_t i = 0; i < module.commands().size(); ++i) {
    const qlora_command &command = module.commands()[i];
    if (command.kind != QLORA_COMMAND_LAUNCH)
      continue;
    const KernelRow *planned =
        findLaunchRow(module, module.launches()[command.target]);
    if (!planned)
      continue;
    QLORA_ASSIGN_OR_RETURN(byCommand[i], find(job, command, *planned));
    rowOfLaunch[command.target] = byCommand[i]->row;
  }
  return Status::ok();
}

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_PREPAREDLAUNCHES_H
