// SPDX-License-Identifier: MIT

// A library launch of the command table as a request to Kernels.def, and
// the check that its operands hold what the kernel will touch.

#ifndef QLORA_RUNTIME_MODULE_LAUNCHREQUEST_H
#define QLORA_RUNTIME_MODULE_LAUNCHREQUEST_H

#include "runtime/Kernels/KernelTable.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// The row that the module names for a launch; nullptr for a generated
/// kernel.
const KernelRow *findLaunchRow(const LoadedModule &module,
                               const qlora_launch &launch);

/// The request of a library launch command.
KernelRequest makeRequest(const LoadedModule &module,
                          const qlora_command &command, const KernelOp &op);

/// Bytes of the launch's `workspace` operand; 0 if its op has none.
uint64_t givenWorkspace(const LoadedModule &module,
                        const qlora_command &command, const KernelOp &op);

/// Why `row` cannot run the launch, or OK: it rejects the request, wants more
/// workspace than given, or an operand has fewer bytes than it would touch.
Status checkLaunchRow(const LoadedModule &module, const qlora_command &command,
                      const KernelRow &row, const KernelRequest &request);

/// kUnavailable where `row` is among the `disabled` names.
Status checkEnabled(const KernelRow &row,
                    std::span<const std::string> disabled);

/// Each name is that of a row ("attention.cudnn").
Status checkKernelNames(std::span<const std::string> names);

/// That each of these ops has an oracle; the error lists those that have.
Status checkReferenceNames(std::span<const std::string> ops);

/// Whether each operand has the bytes that `row` touches; kDataLoss if not.
Status checkOperands(const KernelRow &row, const KernelRequest &request,
                     std::span<const qlora_operand> operands);

/// The types of operands; an absent one has no bytes.
std::vector<std::optional<qlora_dtype>>
dtypesOf(std::span<const qlora_operand> operands);

/// How a command uses an operand: what the table says, except that the target
/// of a matrix product with beta = 0 is not read.
qlora_access effectiveAccess(const LoadedModule &module,
                             const qlora_command &command, size_t operand);

} // namespace qlora

#endif // QLORA_RUNTIME_MODULE_LAUNCHREQUEST_H
