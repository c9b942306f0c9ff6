// SPDX-License-Identifier: MIT

// Differentiable: how an op's gradient is built.

#ifndef QLORA_DIALECTS_TRAIN_TRAININTERFACES_TD
#define QLORA_DIALECTS_TRAIN_TRAININTERFACES_TD

include "mlir/IR/OpBase.td"

def Train_Differentiable : OpInterface<"Differentiable"> {
  let cppNamespace = "::qlora::train";
  let description = [{
    Builds gradient ops at `tape`'s builder: reads the gradients of the op's
    results, adds one contribution to each operand that asks for it.
  }];
  let methods = [
    InterfaceMethod<"Reverse rule. On failure an error was emitted.",
      "::llvm::LogicalResult", "buildGradient",
      (ins "::qlora::train::Tape &":$tape)>,
    InterfaceMethod<[{True for a result that something trained outside of the
      step flows into.}], "bool", "isWanted", (ins "unsigned":$result), [{}],
      [{ return false; }]>,
  ];
}

#endif // QLORA_DIALECTS_TRAIN_TRAININTERFACES_TD
