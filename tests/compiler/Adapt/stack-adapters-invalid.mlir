// SPDX-License-Identifier: MIT

// Adapters that a token cannot choose.

// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4 alpha=4 dora=true' --specialize-shapes="generation=3,8" --build-generation="entries=16" --stack-adapters="adapters=2" 2>&1 | FileCheck %s --check-prefix=DORA
// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4 alpha=8' --specialize-shapes="generation=3,8" --build-generation="entries=16" --stack-adapters="adapters=2" 2>&1 | FileCheck %s --check-prefix=SCALE
// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4 alpha=4' --specialize-shapes="batch=2 lengths=16 generation=3,8" --build-generation="entries=16" --stack-adapters="adapters=2" 2>&1 | FileCheck %s --check-prefix=TRAINS

// DORA: error: --max-loras: 'base_model.model.l.0.{{.*}}' is not the A or B of a linear's plain LoRA, so rows cannot choose it. Fix: compile for this adapter alone, without --max-loras
// SCALE: error: 'model.linear' op expects an adapter of scale 1, but got 2.000000e+00
// TRAINS: error: 'func.func' op expects only functions of a generation
