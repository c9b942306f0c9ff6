// RUN: qlora-opt %s --place-frozen-weights="shards=2 offload-base" --bucket-gradients --lower-to-program | FileCheck %s

// The base is sharded over the host memory of two ranks. A rank's shard is
// copied to its GPU, where all shards are gathered.
// CHECK-DAG: program.parameter "w" host offset 0 bytes 32768 [32, 256] {{.*}}piece 16384
// CHECK-DAG: program.arena host bytes 16384
// CHECK: %[[PIECE:.*]] = program.buffer activation bytes 16384 {{.*}}u8
// CHECK-NEXT: %[[FROM:.*]] = program.buffer host offset 0 bytes 16384 {{.*}}u8
// CHECK-NEXT: program.copy %[[PIECE]] from %[[FROM]] on communication
// CHECK-NEXT: %[[WHOLE:.*]] = program.buffer activation bytes 32768 {{.*}}u8
// CHECK-NEXT: program.collective all_gather 0 %[[WHOLE]] from %[[PIECE]] over fsdp
// CHECK: program.launch @matmul(%{{.*}}, %[[WHOLE]] read f32, %{{.*}})

model.parameter @w : tensor<32x256xf32> {file = "m.safetensors"}
model.parameter @trained : tensor<32x256xf32> {init = "zero", trainable}

train.step accumulate batch 1 length 64 ["ids"] {
^bb0(%ids: tensor<1x64xi32>):
  %w = model.weight @w : tensor<32x256xf32>
  %trained = model.weight @trained : tensor<32x256xf32>
  %x = model.embedding %ids, %trained : (tensor<1x64xi32>, tensor<32x256xf32>) -> tensor<1x64x256xf32>
  %h = model.linear %x, %w : (tensor<1x64x256xf32>, tensor<32x256xf32>) -> tensor<1x64x32xf32>
  %de = train.embedding_grad %ids, %x {phase = #model.phase<backward>} : (tensor<1x64xi32>, tensor<1x64x256xf32>) -> tensor<32x256xf32>
  train.accumulate @trained, %de {phase = #model.phase<backward>} : tensor<32x256xf32>
}
