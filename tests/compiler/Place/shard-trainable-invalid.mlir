// SPDX-License-Identifier: MIT

// RUN: qlora-opt %s --split-input-file --verify-diagnostics --shard-trainable="ranks=2 adapters"

// expected-error @+1 {{--parallel: 'muon' cannot update shards, but 'w' is sharded; use --optim adamw_torch or lion, or remove fsdp and zero2}}
model.parameter @w : tensor<64x32xf32> {file = "m.safetensors", trainable, optimizer = "muon"}

// -----

// schedule_free parameters must be averaged before they are saved.
// expected-error @+1 {{'schedule_free' cannot update shards, but 'a' is}}
model.parameter @a : tensor<8x64xf32> {init = "zero", trainable, optimizer = "schedule_free"}
