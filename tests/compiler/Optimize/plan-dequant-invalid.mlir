// RUN: not qlora-opt %s --plan-dequant="form=fast" 2>&1 | FileCheck %s --check-prefix=FORM
// RUN: not qlora-opt %s --plan-dequant="device-profile=%S/no-such.json" 2>&1 | FileCheck %s --check-prefix=FILE
// RUN: not qlora-opt %s --plan-dequant="device-profile=h200" 2>&1 | FileCheck %s --check-prefix=KIND

// FORM: error: expects auto, tiled, per-use or once as form, but got 'fast'
// FILE: error: '{{.*}}no-such.json' is neither a known GPU ({{.*}}h200{{.*}}) nor a readable file
// KIND: error: the device profile 'h200' describes a GPU, but the program is for cpu; use another profile

module {
}
