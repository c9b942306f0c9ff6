// RUN: qlora-opt %s --split-input-file --verify-diagnostics | FileCheck %s

// Axes are printed in the order of --parallel, without those of one rank.
// CHECK: module attributes {model.mesh = #model.mesh<fsdp = 4, tp = 2>}
module attributes {model.mesh = #model.mesh<tp = 2, cp = 1, fsdp = 4>} {}

// -----

// CHECK: module attributes {model.mesh = #model.mesh<>}
module attributes {model.mesh = #model.mesh<>} {}

// -----

// expected-error @+1 {{expected an axis: fsdp, zero1, zero2, tp, pp, cp, ep}}
module attributes {model.mesh = #model.mesh<dp = 2>} {}

// -----

// expected-error @+1 {{expected 1 to 65535 ranks}}
module attributes {model.mesh = #model.mesh<tp = 0>} {}
