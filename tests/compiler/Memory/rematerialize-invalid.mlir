// RUN: not qlora-opt %s --rematerialize="budget=-1" 2>&1 | FileCheck %s --check-prefix=BUDGET
// RUN: not qlora-opt %s --rematerialize="device-profile=%S/no-such.json" 2>&1 | FileCheck %s --check-prefix=FILE
// RUN: not qlora-opt %s --rematerialize="device-profile=h200" 2>&1 | FileCheck %s --check-prefix=KIND

// BUDGET: error: expects a budget of 0 or more bytes, but got -1
// FILE: error: '{{.*}}no-such.json' is neither a known GPU ({{.*}}h200{{.*}}) nor a readable file
// KIND: error: the device profile 'h200' describes a GPU, but the program is for cpu; use another profile

train.step evaluate batch 1 length 8 [] {
}
