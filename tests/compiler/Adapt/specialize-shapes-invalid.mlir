// SPDX-License-Identifier: MIT

// Errors of specialize-shapes.

// RUN: not qlora-opt %s --specialize-shapes="batch=1 lengths=8 compute-type=float16" 2>&1 | FileCheck %s --check-prefix=TYPE
// RUN: not qlora-opt %s --specialize-shapes="batch=0 lengths=8" 2>&1 | FileCheck %s --check-prefix=BATCH
// RUN: not qlora-opt %s --specialize-shapes="batch=1" 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: not qlora-opt %s --specialize-shapes="batch=1 lengths=1" 2>&1 | FileCheck %s --check-prefix=SHORT
// RUN: not qlora-opt %s --specialize-shapes="batch=1 lengths=8,16,8" 2>&1 | FileCheck %s --check-prefix=TWICE
// RUN: not qlora-opt %s --specialize-shapes="batch=1 lengths=8 buckets=4,4" 2>&1 | FileCheck %s --check-prefix=BUCKETS
// RUN: not qlora-opt %s --specialize-shapes="batch=1 lengths=8 generation=4" 2>&1 | FileCheck %s --check-prefix=GENERATION
// RUN: not qlora-opt %s --specialize-shapes="batch=1 lengths=8 generation=0,8" 2>&1 | FileCheck %s --check-prefix=GENERATION
// RUN: not qlora-opt %s --specialize-shapes="batch=1 lengths=8 generation=4,0" 2>&1 | FileCheck %s --check-prefix=GENERATION
// RUN: not qlora-opt %s --specialize-shapes="batch=1 lengths=8" 2>&1 | FileCheck %s --check-prefix=BODY

// TYPE: error: expects float32 or bfloat16 as compute type, but got 'float16'
// BATCH: error: expects a batch of at least 1, but got 0
// NONE: error: expects at least one length, or a generation
// SHORT: error: expects a length of at least 2, since a token predicts the next, but got 1
// TWICE: error: expects each length once, but got 8 twice
// BUCKETS: error: expects each length once, but got 4 twice
// GENERATION: error: expects rows and tokens of at least 1 as generation
// BODY: error: 'func.func' op has no body; expects the forward function

func.func private @forward(tensor<?x?xi32>) -> tensor<1xf32>
