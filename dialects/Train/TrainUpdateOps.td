// SPDX-License-Identifier: MIT

// The updates of optimizers. Included by TrainOps.td, whose classes apply.

#ifndef QLORA_DIALECTS_TRAIN_TRAINUPDATEOPS_TD
#define QLORA_DIALECTS_TRAIN_TRAINUPDATEOPS_TD

/// Operands: p, the optimizer states, g of p's shape, and scale [1], which
/// multiplies g. Results: the new p and states. Rates, betas and bias
/// corrections come from the step block; the learning rate is multiplied by
/// `rate_scale`, and `undecayed` disables weight decay. If scale is NaN,
/// because a gradient or the loss was not finite, the step changes nothing.
class Train_Update<string mnemonic, list<Trait> traits>
    : Train_Op<mnemonic, [Pure] # traits> {
  dag updateArguments = (ins Model_Tensor:$p, Variadic<Model_Tensor>:$states,
    Model_Tensor:$g, Model_Tensor:$scale,
    DefaultValuedAttr<F64Attr, "1.0">:$rate_scale, UnitAttr:$undecayed);
  let ownArguments = updateArguments;
  let results = (outs Model_Tensor:$new_p, Variadic<Model_Tensor>:$new_states);
  let assemblyFormat = Model_OperandsFormat;
}
class Train_RowUpdate<string mnemonic>
    : Train_Update<mnemonic,
                   [Model_MemoryOp,
                    DeclareOpInterfaceMethods<Model_RowOp, ["getRowMaps"]>]>;

def Train_AdamWOp : Train_RowUpdate<"adamw"> {
  let summary = "AdamW as in torch (Loshchilov and Hutter, 2019)";
  let description = "States m and v. All operands are [R, kFlatColumns].";
}

def Train_LionOp : Train_RowUpdate<"lion"> {
  let summary = "Lion as in bitsandbytes (Chen et al., 2023)";
  let description = "State m.";
}

def Train_RmsPropOp : Train_RowUpdate<"rmsprop"> {
  let summary = "RMSprop as in torch (Hinton, 2012)";
  let description = "State v. Neither momentum nor centered.";
}

def Train_ScheduleFreeOp : Train_RowUpdate<"schedule_free"> {
  let summary = "AdamW without a schedule (Defazio et al., 2024)";
  let description = [{
    States z and v. p is y, at which gradients are computed; evaluation uses the
    average x (`schedule_free_switch`). z starts at p.
  }];
}

def Train_ScheduleFreeSwitchOp : Train_Op<"schedule_free_switch",
    [Pure, Model_MemoryOp, DeclareOpInterfaceMethods<Model_RowOp>]> {
  let summary = "x from y and z; with `back` y from x and z";
  let ownArguments = (ins Model_Tensor:$p, Model_Tensor:$z, UnitAttr:$back);
  let results = (outs Model_Tensor:$new_p);
  let assemblyFormat = Model_OperandsFormat;
}

def Train_UpdateOp : Train_Update<"update",
    [DeclareOpInterfaceMethods<Model_MemoryOp, ["getMemoryTies"]>,
     DeclareOpInterfaceMethods<Model_LibraryOp>]> {
  let summary = "updates one tensor with the library kernel `kernel`";
  let description = "p and g are [R, C]; the kernel defines the states.";
  let ownArguments = !con((ins StrAttr:$kernel), updateArguments);
  let assemblyFormat =
      "$kernel operands attr-dict `:` functional-type(operands, results)";
}

#endif // QLORA_DIALECTS_TRAIN_TRAINUPDATEOPS_TD
