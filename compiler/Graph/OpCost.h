// SPDX-License-Identifier: MIT

// What an op of a train.step does, for the cost model: by interface, never by
// name.

#ifndef QLORA_COMPILER_GRAPH_OPCOST_H
#define QLORA_COMPILER_GRAPH_OPCOST_H

#include "dialects/Train/Train.h"
#include "runtime/Kernels/CostModel.h"

namespace qlora {

/// Seconds of an op on `device`. A row op reads its operands and writes its
/// results once; a library op is asked for its kernel call; a sum over ranks
/// takes the network's time. Everything else
/// (weights, views, structure) is free. All shapes have to be static.
double secondsOf(mlir::Operation *op, const DeviceProfile &device);

/// Bytes of all that an op makes.
int64_t resultBytes(mlir::Operation *op);

/// Writes the arithmetic of a row op into a region of its own, to look at it.
mlir::Block &writeArithmetic(model::RowOp op, mlir::Region &region);

/// Seconds of library ops that use one stored weight, by how it becomes
/// numbers.
struct DecodeSeconds {
  double panel = 0;    ///< inside of each op's kernel
  double scratch = 0;  ///< once before them, the decoding included
  double resident = 0; ///< when it is loaded: in no step
};
/// Of `uses` with a weight decoded to `compute`. The ops are asked, and others
/// like them outside of the step, whose weight has the type of the numbers.
DecodeSeconds decodeSeconds(llvm::ArrayRef<mlir::OpOperand *> uses,
                            mlir::Type compute, const DeviceProfile &device);

/// The request of a library op's kernel call, with the dtypes of its tensors.
KernelRequest kernelRequestOf(model::LibraryOp op);

/// The op's place in the model, as in the reports: the name in its location,
/// or else the op's own.
std::string labelOf(mlir::Operation *op);

} // namespace qlora

#endif // QLORA_COMPILER_GRAPH_OPCOST_H
