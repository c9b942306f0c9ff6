// SPDX-License-Identifier: MIT

// Converts a library launch of the command table to a request to Kernels.def,
// and checks that its operands hold all bytes that the kernel touches.

#ifndef QLORA_RUNTIME_MODULE_LAUNCHREQUEST_H
#define QLORA_RUNTIME_MODULE_LAUNCHREQUEST_H

#include "runtime/Kernels/KernelTable.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// Returns a launch's row of Kernels.def; nullptr for a generated kernel.
const KernelRow *findLaunchRow(const LoadedModule &module,
                               const qlora_launch &launch);

/// Returns the request to Kernels.def for a library launch command.
KernelRequest makeRequest(const LoadedModule &module,
                          const qlora_command &command, const KernelOp &op);

/// Bytes of the launch's `workspace` operand; 0 if its op has none.
uint64_t givenWorkspace(const LoadedModule &module,
                        const qlora_command &command, const KernelOp &op);

/// Returns an error if `row` cannot run the launch: if it rejects the request,
/// needs a larger workspace, or touches more bytes than an operand has.
Status checkLaunchRow(const LoadedModule &module, const qlora_command &command,
                      const KernelRow &row, const KernelRequest &request);

/// Returns kUnavailable if `row` is among the `disabled` names.
Status checkEnabled(const KernelRow &row,
                    std::span<const std::string> disabled);

/// Checks that each name is a row of Kernels.def, such as "attention.cudnn".
Status checkKernelNames(std::span<const std::string> names);

/// Checks that ops have reference kernels; the error lists all ops that do.
Status checkReferenceNames(std::span<const std::string> ops);

/// Checks that each operand has the bytes that `row` touches; else kDataLoss.
Status checkOperands(const KernelRow &row, const KernelRequest &request,
                     std::span<const qlora_operand> operands);

/// Returns the types of operands; nullopt for an absent operand (0 bytes).
std::vector<std::optional<qlora_dtype>>
dtypesOf(std::span<const qlora_operand> operands);

/// How a command uses an operand: the access in the table, except that the
/// target of a matmul with beta = 0 is not read.
qlora_access effectiveAccess(const LoadedModule &module,
                             const qlora_command &command, size_t operand);

} // namespace qlora

#endif // QLORA_RUNTIME_MODULE_LAUNCHREQUEST_H
