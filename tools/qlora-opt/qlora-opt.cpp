// SPDX-License-Identifier: MIT

// qlora-opt: stock mlir-opt with our dialects and passes, for tests.

#include "mlir/IR/MLIRContext.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "mlir/Transforms/Passes.h"

#include "compiler/Passes.h"
#include "compiler/Pipeline.h"
#include "dialects/Train/Train.h"

int main(int argc, char **argv) {
  mlir::DialectRegistry registry;
  registry.insert<mlir::arith::ArithDialect, mlir::math::MathDialect,
                  mlir::func::FuncDialect, qlora::model::ModelDialect,
                  qlora::train::TrainDialect, qlora::program::ProgramDialect>();
  qlora::train::registerModelGradients(registry);
  mlir::registerTransformsPasses();
  qlora::registerQLoRAPasses();
  qlora::registerPhases();
  return mlir::asMainReturnCode(
      mlir::MlirOptMain(argc, argv, "qlora optimizer driver\n", registry));
}
