// SPDX-License-Identifier: MIT

// What an op of a train.step does, for the cost model: by interface, never by
// name.

#ifndef QLORA_COMPILER_GRAPH_OPCOST_H
#define QLORA_COMPILER_GRAPH_OPCOST_H

#include "dialects/Model/Model.h"
#include "runtime/Kernels/CostModel.h"

namespace qlora {

/// Seconds of an op on `device`. A row op reads its operands and writes its
/// results once; a library op is asked for its kernel call. Everything else
/// (weights, views, structure) is free. All shapes have to be static.
double secondsOf(mlir::Operation *op, const DeviceProfile &device);

/// The same for a library op of which `written`, an operand, was written just
/// before: a CPU has it in a cache.
double secondsAfterWriting(mlir::Value written, model::LibraryOp op,
                           const DeviceProfile &device);

/// The request of a library op's kernel call, with the dtypes of its tensors.
KernelRequest kernelRequestOf(model::LibraryOp op);

/// The op's place in the model, as in the reports: the name in its location,
/// or else the op's own.
std::string labelOf(mlir::Operation *op);

} // namespace qlora

#endif // QLORA_COMPILER_GRAPH_OPCOST_H
