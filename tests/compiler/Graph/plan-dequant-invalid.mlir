// RUN: not qlora-opt %s --plan-dequant="form=fast" 2>&1 | FileCheck %s --check-prefix=FORM
// RUN: not qlora-opt %s --plan-dequant="device-profile=%S/no-such.json" 2>&1 | FileCheck %s --check-prefix=FILE

// FORM: error: expects auto, panel, scratch or resident as form, but got 'fast'
// FILE: error: {{.*}}no-such.json: cannot be read; make it with qlora-run --calibrate

module {
}
