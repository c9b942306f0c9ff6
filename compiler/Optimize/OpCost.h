// SPDX-License-Identifier: MIT

// Cost of an op of a train.step, from its interfaces and not from its name.

#ifndef QLORA_COMPILER_OPTIMIZE_OPCOST_H
#define QLORA_COMPILER_OPTIMIZE_OPCOST_H

#include "dialects/Train/Train.h"
#include "runtime/Kernels/CostModel.h"

namespace qlora {

/// Returns the seconds of an op on `device`. A row op reads its operands and
/// writes its results once; a library op is priced by its kernel request; a
/// reduction over ranks takes network time. Everything else (weights, views,
/// structure) is free. All shapes must be static.
double secondsOf(mlir::Operation *op, const DeviceProfile &device);

/// Returns the bytes of all results of an op.
int64_t resultBytes(mlir::Operation *op);

/// Writes the arithmetic of a row op into `region`, for inspection.
mlir::Block &writeArithmetic(model::RowOp op, mlir::Region &region);

/// Seconds of the library ops that use one stored weight, for each way to
/// decode it.
struct DecodeSeconds {
  double panel = 0;    ///< in each op's kernel
  double scratch = 0;  ///< once before the ops, decoding included
  double resident = 0; ///< at load time, which is not counted
};
/// Returns the seconds of the ops of `uses`, which read one weight, with each
/// way to decode it to `compute`. The ops and their step do not change.
DecodeSeconds decodeSeconds(llvm::ArrayRef<mlir::OpOperand *> uses,
                            mlir::Type compute, const DeviceProfile &device);

/// Returns the request of a library op's kernel, with its tensors' dtypes.
KernelRequest kernelRequestOf(model::LibraryOp op);

/// Returns the op's place in the model, as in reports: the name in its
/// location, else the op's name.
std::string labelOf(mlir::Operation *op);

} // namespace qlora

#endif // QLORA_COMPILER_OPTIMIZE_OPCOST_H
