// RUN: qlora-opt %s --place-frozen-weights=offload-tables --bucket-gradients --lower-to-program | FileCheck %s
// RUN: qlora-opt %s --bucket-gradients --lower-to-program | FileCheck %s --check-prefix=CARD
// RUN: qlora-opt %s --place-frozen-weights=offload-base --bucket-gradients --lower-to-program=offload-states | FileCheck %s --check-prefix=BASE
// RUN: qlora-opt %s --place-frozen-weights=offload-base --bucket-gradients --lower-to-program --select-kernels=target=cuda --assign-queues=target=cuda | FileCheck %s --check-prefix=QUEUES

// Kernels read only single rows of @table, so it may be in host memory. A
// matmul reads all of @tied, and @trained is not frozen.
// CHECK-DAG: program.parameter "table" host offset 0 bytes 16384 [32, 256]
// CHECK-DAG: program.parameter "tied" frozen offset 0 bytes 32768 [32, 256]
// CHECK-DAG: program.parameter "trained" trainable
// CHECK-DAG: program.arena frozen bytes 32768
// CHECK-DAG: program.arena host bytes 16384
// CHECK: %[[TABLE:.*]] = program.buffer host offset 0 bytes 16384
// CHECK: program.launch @embedding(%{{.*}}, %[[TABLE]] {{[a-z_]+ [a-z0-9]+}}, %{{.*}})

// If the base is in host memory, all frozen weights are. The embedding reads
// rows of @tied over the bus. Its bytes are copied to the GPU for the matmul.
// BASE-DAG: program.parameter "table" host offset 0 bytes 16384 [32, 256]
// BASE-DAG: program.parameter "tied" host offset 16384 bytes 32768 [32, 256]
// BASE-DAG: program.arena frozen bytes 0
// BASE-DAG: program.arena state bytes {{[0-9]+}} alignment 64 {on_host}
// BASE-DAG: program.arena host bytes 49152
// BASE: %[[ROWS:.*]] = program.buffer host offset 16384 bytes 32768 {{.*}}f32
// BASE: program.launch @embedding(%{{.*}}, %[[ROWS]] read f32, %{{.*}})
// BASE: %[[TO:.*]] = program.buffer activation bytes 32768 {{.*}}u8
// BASE: %[[FROM:.*]] = program.buffer host offset 16384 bytes 32768 {{.*}}u8
// BASE: program.copy %[[TO]] from %[[FROM]] on communication
// BASE: program.launch @matmul(%{{.*}}, %[[TO]] read f32, %{{.*}})

// Only the reader of the copy waits for the queue that copies.
// QUEUES: program.copy %[[TO:.*]] from %{{.*}} on communication
// QUEUES: program.record [[EVENT:[0-9]+]] on communication
// QUEUES-NEXT: program.wait [[EVENT]] on compute
// QUEUES-NEXT: program.launch @matmul{{.*}}(%{{.*}}, %[[TO]] read f32, %{{.*}})

// CARD-NOT: host
// CARD: program.parameter "table" frozen
// CARD-NOT: program.arena host

model.parameter @table : tensor<32x256xbf16> {file = "m.safetensors"}
model.parameter @tied : tensor<32x256xf32> {file = "m.safetensors"}
model.parameter @trained : tensor<32x256xf32> {init = "zero", trainable}

train.step accumulate batch 1 length 64 ["ids"] {
^bb0(%ids: tensor<1x64xi32>):
  %table = model.weight @table : tensor<32x256xbf16>
  %tied = model.weight @tied : tensor<32x256xf32>
  %trained = model.weight @trained : tensor<32x256xf32>
  %x = model.embedding %ids, %table : (tensor<1x64xi32>, tensor<32x256xbf16>) -> tensor<1x64x256xf32>
  %y = model.embedding %ids, %tied : (tensor<1x64xi32>, tensor<32x256xf32>) -> tensor<1x64x256xf32>
  %z = model.embedding %ids, %trained : (tensor<1x64xi32>, tensor<32x256xf32>) -> tensor<1x64x256xf32>
  %h = model.linear %y, %tied : (tensor<1x64x256xf32>, tensor<32x256xf32>) -> tensor<1x64x32xf32>
  %de = train.embedding_grad %ids, %x {phase = #model.phase<backward>} : (tensor<1x64xi32>, tensor<1x64x256xf32>) -> tensor<32x256xf32>
  train.accumulate @trained, %de {phase = #model.phase<backward>} : tensor<32x256xf32>
}
