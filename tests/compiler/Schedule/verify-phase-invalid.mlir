// SPDX-License-Identifier: MIT

// Violated invariants of the phases before `program`, and an unknown phase.

// RUN: split-file %s %t
// RUN: not qlora-opt %t/dynamic.mlir --verify-phase=phase=adapt 2>&1 | FileCheck %s --check-prefix=DYNAMIC
// RUN: not qlora-opt %t/argument.mlir --verify-phase=phase=adapt 2>&1 | FileCheck %s --check-prefix=ARGUMENT
// RUN: not qlora-opt %t/function.mlir --verify-phase=phase=step 2>&1 | FileCheck %s --check-prefix=FUNCTION
// RUN: not qlora-opt %t/updates.mlir --verify-phase=phase=step 2>&1 | FileCheck %s --check-prefix=UPDATES
// RUN: not qlora-opt %t/row.mlir --verify-phase=phase=optimize 2>&1 | FileCheck %s --check-prefix=ROW
// RUN: not qlora-opt %t/layout.mlir --verify-phase=phase=optimize 2>&1 | FileCheck %s --check-prefix=LAYOUT
// RUN: not qlora-opt %t/layout.mlir --verify-phase=phase=link 2>&1 | FileCheck %s --check-prefix=NAME

//--- dynamic.mlir
// DYNAMIC: error: 'func.call' op has the dynamic shape 'tensor<?x?x4xf32>' after adapt
func.func private @source() -> tensor<?x?x4xf32>
func.func @forward() {
  %x = func.call @source() : () -> tensor<?x?x4xf32>
  return
}

//--- argument.mlir
// ARGUMENT: error: 'func.func' op has the dynamic shape 'tensor<?xi32>' after adapt
func.func @forward(%x: tensor<?xi32>) {
  return
}

//--- function.mlir
// FUNCTION: error: 'func.func' op is left after step
func.func @forward() {
  return
}

//--- updates.mlir
// UPDATES: error: expects one update step, but got 2
train.step update batch 0 length 0 [] {
}
train.step update batch 0 length 0 [] {
}

//--- row.mlir
// ROW: error: 'model.add' op is left after optimize
train.step evaluate batch 1 length 4 [] {
  %p = train.flat trainable : tensor<1x4x8xf32>
  %0 = model.add %p, %p : tensor<1x4x8xf32>
}

//--- layout.mlir
// LAYOUT: error: has no train.layout after optimize
// NAME: error: verify-phase does not know the phase 'link'
module {
}
