// SPDX-License-Identifier: MIT

// RUN: qlora-opt %s --split-input-file --verify-diagnostics --shard-trainable="ranks=2 adapters"

// expected-error @+1 {{--parallel: 'muon' cannot update pieces, and 'w' would be in pieces on the ranks; train with --optim adamw_torch or lion, or without fsdp and zero2}}
model.parameter @w : tensor<64x32xf32> {file = "m.safetensors", trainable, optimizer = "muon"}

// -----

// A value that must be averaged before it is saved.
// expected-error @+1 {{'schedule_free' cannot update pieces, and 'a' would be}}
model.parameter @a : tensor<8x64xf32> {init = "zero", trainable, optimizer = "schedule_free"}
