// RUN: qlora-opt %S/../Inputs/layer.mlir --specialize-shapes="batch=2 lengths=32" --quantize-base --attach-adapters='r=4' --fuse-lora --build-train-step --fuse-accumulate --fuse-rows --bucket-gradients --lower-to-program --assign-queues | FileCheck %s

// The entry without collectives has no events.
// CHECK: program.entry accumulate batch
// CHECK-NOT: program.record
// CHECK: program.entry accumulate_last
// CHECK: program.record 0 on compute
// CHECK-NEXT: program.wait 0 on communication
// CHECK-NEXT: program.collective all_reduce 0 %{{.*}}
// The next launch, in the backward, runs concurrently with the all-reduce.
// CHECK: program.launch
// One event at the end of the entry suffices, because a queue runs in order.
// CHECK: program.record [[#E:]] on communication
// CHECK-NEXT: program.wait [[#E]] on compute
// CHECK: program.entry evaluate
