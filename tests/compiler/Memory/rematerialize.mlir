// RUN: qlora-opt %s --rematerialize | FileCheck %s --check-prefix=KEEP
// RUN: qlora-opt %s --rematerialize="budget=458752" | FileCheck %s --check-prefix=FITS
// RUN: qlora-opt %s --rematerialize="budget=393216" | FileCheck %s --check-prefix=DROP-X
// RUN: qlora-opt %s --rematerialize="budget=327680" | FileCheck %s --check-prefix=DROP-XN
// RUN: qlora-opt %s --rematerialize="budget=262144" | FileCheck %s --check-prefix=DROP-XNS
// RUN: qlora-opt %s --rematerialize="budget=393216 problem" | FileCheck %s --check-prefix=PROBLEM
// RUN: qlora-opt %s --rematerialize=blocks | FileCheck %s --check-prefix=BLOCKS
// RUN: qlora-opt %s --rematerialize="budget=327680" --remark-policy=all --remarks-filter=rematerialize -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK
// RUN: qlora-opt %s --rematerialize="budget=1" --remark-policy=all --remarks-filter=rematerialize -o /dev/null 2>&1 | FileCheck %s --check-prefix=UNMET

// Every activation has 64 tokens of 256 values: U = 65536 bytes. The forward
// computes x (embedding), n (norm), g and u (linears), s (swiglu), y (linear)
// and z (norm). The backward reads, in this order, z, y, s, g, u, n, x, and
// computes d, dy, ds, dg, du, dn, dx. Weight gradients go to the gradient
// arena.
//
// If all values are saved, x n g u s y are alive in the backward, together with
// z, then with d in the memory of z, then with dy: 7 U = 458752.

// KEEP: train.step accumulate {{.*}}rematerialize = {batch = 1 : i64, budget = 0 : i64, estimated_peak = 458752 : i64, length = 64 : i64, peak_of_all_kept = 458752 : i64, policy = "keep", recompute_seconds = 0.000000e+00 : f64, recomputed = []}
// KEEP-NOT: phase = #model.phase<recomputed>
// FITS: budget = 458752 : i64, estimated_peak = 458752 : i64, {{.*}}policy = "budget", recompute_seconds = 0.000000e+00 : f64, recomputed = []
// FITS-NOT: phase = #model.phase<recomputed>

// With 6 U, one saved value must be recomputed. x is the cheapest: rows of a
// bf16 table, 65536 bytes. It is recomputed just before its use, at the end.
// DROP-X-LABEL: train.step accumulate{{.*}} estimated_peak = 393216 : i64
// DROP-X: %[[TABLE:.*]] = model.weight @table
// DROP-X: %[[X:.*]] = model.embedding
// DROP-X: %[[N:.*]] = model.rms_norm %[[X]]
// DROP-X: train.linear_weight_grad %{{.*}}, %[[N]]
// DROP-X: %[[DN:.*]] = model.linear
// DROP-X-NEXT: %[[X2:.*]] = model.embedding %{{.*}}, %[[TABLE]] {phase = #model.phase<recomputed>}
// DROP-X-NEXT: model.add %[[DN]], %[[X2]]

// The numbers behind the decision. x is op 0, and is recomputed before op 17.
// PROBLEM: ops = [{backward = false, before = array<i64: 17>, {{.*}}inputs = array<i64>, of = {{.*}}, op = "model.embedding", outputs = array<i64: 0>, {{.*}}ties = [], view = false}
// PROBLEM-SAME: values = [array<i64: 65536, -1>,

// With 5 U, n is also recomputed: the next cheapest, from the recomputed x.
// DROP-XN-LABEL: train.step accumulate{{.*}} estimated_peak = 327680 : i64
// DROP-XN: %[[S:.*]] = model.glu
// DROP-XN: train.linear_weight_grad %{{.*}}, %[[S]]
// DROP-XN: %[[X2:.*]] = model.embedding {{.*}} {phase = #model.phase<recomputed>}
// DROP-XN-NEXT: %[[N2:.*]] = model.rms_norm %[[X2]], %{{.*}} {epsilon = 1.000000e-05 : f64, layer = 0 : i64, phase = #model.phase<recomputed>}
// DROP-XN-NEXT: train.linear_weight_grad %{{.*}}, %[[N2]]
// DROP-XN: model.add %{{.*}}, %[[X2]]

// With 4 U, s is recomputed too, from g and u, which are saved anyway.
// DROP-XNS-LABEL: train.step accumulate{{.*}} estimated_peak = 262144 : i64
// DROP-XNS: %[[G:.*]] = model.linear
// DROP-XNS: %[[U:.*]] = model.linear
// DROP-XNS: %[[S2:.*]] = model.glu silu %[[G]], %[[U]] {layer = 0 : i64, phase = #model.phase<recomputed>}
// DROP-XNS-NEXT: train.linear_weight_grad %{{.*}}, %[[S2]]
// DROP-XNS: model.embedding {{.*}}phase = #model.phase<recomputed>
// DROP-XNS-NEXT: model.rms_norm {{.*}}phase = #model.phase<recomputed>

// Recompute block 0: x and z are in no block, and y is read by z. n, g, u and s
// are recomputed before the first reader of s. There, x n g u s dy are alive:
// the peak is 6 U.
// BLOCKS-LABEL: train.step accumulate{{.*}} budget = 0 : i64, estimated_peak = 393216 : i64, {{.*}}policy = "blocks"
// BLOCKS: %[[X:.*]] = model.embedding
// BLOCKS: %[[DY:.*]] = model.add
// BLOCKS: %[[DY:.*]] = model.add
// BLOCKS-NEXT: %[[N2:.*]] = model.rms_norm %[[X]], {{.*}}phase = #model.phase<recomputed>
// BLOCKS-NEXT: %[[G2:.*]] = model.linear %[[N2]], {{.*}}phase = #model.phase<recomputed>
// BLOCKS-NEXT: %[[U2:.*]] = model.linear %[[N2]], {{.*}}phase = #model.phase<recomputed>
// BLOCKS-NEXT: %[[S2:.*]] = model.glu silu %[[G2]], %[[U2]] {{.*}}phase = #model.phase<recomputed>
// BLOCKS-NEXT: train.linear_weight_grad %[[DY]], %[[S2]]
// BLOCKS: model.glu silu %{{.*}}, %[[G2]]
// BLOCKS-NOT: phase = #model.phase<recomputed>

// REMARK: remark: [Passed] recomputed | Category:rematerialize | Remark="recomputed before the backward of train.linear_weight_grad, saves 65536 bytes"
// REMARK: remark: [Passed] recomputed | Category:rematerialize | Remark="recomputed before the backward of train.linear_weight_grad, saves 65536 bytes"
// REMARK: remark: [Analysis] peak | Category:rematerialize | Remark="estimated peak of 327680 bytes, 131072 less than without recomputing, for {{.*}} us
// UNMET: remark: [Analysis] peak | Category:rematerialize | Remark="estimated peak of {{.*}}; no plan within the budget was found

model.parameter @table : tensor<32x256xbf16> {file = "m.safetensors"}
model.parameter @norm : tensor<256xf32> {file = "m.safetensors"}
model.parameter @up : tensor<256x256xf32> {init = "zero", trainable}
model.parameter @down : tensor<256x256xf32> {init = "zero", trainable}

train.step accumulate batch 1 length 64 ["ids"] {
^bb0(%ids: tensor<1x64xi32>):
  %table = model.weight @table : tensor<32x256xbf16>
  %norm = model.weight @norm : tensor<256xf32>
  %up = model.weight @up : tensor<256x256xf32>
  %down = model.weight @down : tensor<256x256xf32>
  %x = model.embedding %ids, %table : (tensor<1x64xi32>, tensor<32x256xbf16>) -> tensor<1x64x256xf32>
  %n = model.rms_norm %x, %norm {epsilon = 1.0e-5 : f64, layer = 0 : i64} : (tensor<1x64x256xf32>, tensor<256xf32>) -> tensor<1x64x256xf32>
  %g = model.linear %n, %up {layer = 0 : i64} : (tensor<1x64x256xf32>, tensor<256x256xf32>) -> tensor<1x64x256xf32>
  %u = model.linear %n, %up {layer = 0 : i64} : (tensor<1x64x256xf32>, tensor<256x256xf32>) -> tensor<1x64x256xf32>
  %s = model.glu silu %g, %u {layer = 0 : i64} : tensor<1x64x256xf32>
  %y = model.linear %s, %down {layer = 0 : i64} : (tensor<1x64x256xf32>, tensor<256x256xf32>) -> tensor<1x64x256xf32>
  %z = model.rms_norm %y, %norm {epsilon = 1.0e-5 : f64} : (tensor<1x64x256xf32>, tensor<256xf32>) -> tensor<1x64x256xf32>

  %d = model.add %z, %z {phase = #model.phase<backward>} : tensor<1x64x256xf32>
  %dy = model.add %d, %y {phase = #model.phase<backward>} : tensor<1x64x256xf32>
  %ddown = train.linear_weight_grad %dy, %s {phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<1x64x256xf32>, tensor<1x64x256xf32>) -> tensor<256x256xf32>
  train.accumulate @down, %ddown {phase = #model.phase<backward>} : tensor<256x256xf32>
  %ds = model.linear %dy, %down layout in_out {phase = #model.phase<backward>} : (tensor<1x64x256xf32>, tensor<256x256xf32>) -> tensor<1x64x256xf32>
  %dg = model.glu silu %ds, %g {phase = #model.phase<backward>} : tensor<1x64x256xf32>
  %du = model.add %dg, %u {phase = #model.phase<backward>} : tensor<1x64x256xf32>
  %dup = train.linear_weight_grad %du, %n {phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<1x64x256xf32>, tensor<1x64x256xf32>) -> tensor<256x256xf32>
  train.accumulate @up, %dup {phase = #model.phase<backward>} : tensor<256x256xf32>
  %dn = model.linear %du, %up layout in_out {phase = #model.phase<backward>} : (tensor<1x64x256xf32>, tensor<256x256xf32>) -> tensor<1x64x256xf32>
  %dx = model.add %dn, %x {phase = #model.phase<backward>} : tensor<1x64x256xf32>
}
