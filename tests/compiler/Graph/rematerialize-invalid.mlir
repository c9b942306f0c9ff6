// RUN: not qlora-opt %s --rematerialize="budget=-1" 2>&1 | FileCheck %s --check-prefix=BUDGET
// RUN: not qlora-opt %s --rematerialize="device-profile=%S/no-such.json" 2>&1 | FileCheck %s --check-prefix=FILE

// BUDGET: error: expects a budget of 0 or more bytes, but got -1
// FILE: error: {{.*}}no-such.json: cannot be read; make it with qlora-run --calibrate

module {
}
