// SPDX-License-Identifier: MIT

// The plan of a complete module, with the decisions of each pass for every
// step and for the module. If the passes of the step phase do not run, the
// plan has no decisions about steps.

// RUN: qlora-opt %S/../Inputs/layer.mlir --phase-adapt --phase-step --phase-optimize --phase-program --print-plan -o /dev/null | FileCheck %s
// RUN: qlora-opt %S/../Inputs/layer.mlir --phase-adapt --phase-step --fuse-rows --bucket-gradients --phase-program --print-plan -o /dev/null | FileCheck %s --check-prefix=FEW --implicit-check-not=rematerialize --implicit-check-not=plan-dequant

// CHECK: {"arenas":{"activation":[[#]],
// CHECK-SAME: "bucket-gradients":[{"bytes":{{[0-9]+}},"offset_bytes":0,"parameters":{{[0-9]+}},"starts_after":
// CHECK-SAME: "encode-activations":{"encoded_bytes":{{[0-9]+}},"exact_bytes":{{[0-9]+}},"values":{{[0-9]+}}}
// CHECK-SAME: "entries":[{"activation_bytes":
// CHECK-SAME: "host_bytes":0
// CHECK-SAME: "plan-dequant":[{"groups":[{"backward":
// CHECK-SAME: "rematerialize":{"budget":0,"estimated_peak":{{[0-9]+}},"policy":"keep","recompute_seconds":0,"steps":[{"batch":
// CHECK-SAME: "select-kernels":[{"kernel":
// CHECK-SAME: "total_bytes":[[#]]}
// FEW: "bucket-gradients":[{
// FEW-SAME: "select-kernels":[{
