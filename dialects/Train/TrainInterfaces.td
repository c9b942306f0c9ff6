// SPDX-License-Identifier: MIT

// Differentiable: how an op's gradient is built.

#ifndef QLORA_DIALECTS_TRAIN_TRAININTERFACES_TD
#define QLORA_DIALECTS_TRAIN_TRAININTERFACES_TD

include "mlir/IR/OpBase.td"

def Train_Differentiable : OpInterface<"Differentiable"> {
  let cppNamespace = "::qlora::train";
  let description = [{
    An op with a derivative rule. The rule creates ops with `tape`'s builder. It
    reads the results' gradients and adds to the operands' gradients.
  }];
  let methods = [
    InterfaceMethod<"Reverse rule. On failure an error was emitted.",
      "::llvm::LogicalResult", "buildGradient",
      (ins "::qlora::train::Tape &":$tape)>,
    InterfaceMethod<[{True for a result that depends on a parameter that another
      pipeline stage trains.}],
      "bool", "isWanted", (ins "unsigned":$result), [{}],
      [{ return false; }]>,
  ];
}

#endif // QLORA_DIALECTS_TRAIN_TRAININTERFACES_TD
