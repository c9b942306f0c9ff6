// SPDX-License-Identifier: MIT

// Gradients of the expert ops (Model/ModelExpertOps.td). Included by
// TrainOps.td, whose classes apply.

#ifndef QLORA_DIALECTS_TRAIN_TRAINEXPERTOPS_TD
#define QLORA_DIALECTS_TRAIN_TRAINEXPERTOPS_TD

def Train_GroupedWeightGradOp
    : Train_Library<"grouped_weight_grad", [Model_AccumulatingOp]> {
  let summary = "dW_e = init + scale * dy^T . x, for the rows of each group e";
  let description = [{
    dy [..., out], x [..., in], offsets i32 [E + 1]. dW and init are f32 and
    shaped as W of model.grouped_linear: [E * out, in], or with `groups_last`
    [out, in * E]. (C1) shapes agree and dW is f32.
  }];
  let ownArguments = (ins Model_Tensor:$dy, Model_Tensor:$x,
    Model_Tensor:$offsets, Optional<Model_Tensor>:$init, F64Attr:$scale,
    UnitAttr:$groups_last, DefaultValuedAttr<I64Attr, "1">:$shared);
  let results = (outs Model_Tensor:$result);
  let assemblyFormat = [{
    $dy `,` $x `,` $offsets (`init` $init^)? attr-dict
    `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

def Train_RouteGradOp : Train_Library<"route_grad"> {
  let summary = "gradient of model.route through the weights";
  let ownArguments = (ins Model_Tensor:$logits, Model_Tensor:$choices,
    Model_Tensor:$dweights, UnitAttr:$over_all);
  let results = (outs Model_Tensor:$dlogits);
  let assemblyFormat = Model_OperandsFormat;
}

def Train_ChoiceGradOp : Train_Library<"choice_grad"> {
  let summary = "gradient of the weights of model.combine_rows";
  let description = [{
    dweights[n, j] = tokens[n] . rows[places[n, j]], with tokens dy and rows x.
    For the weights of model.gather_rows, tokens are x and rows dy.
  }];
  let ownArguments = (ins Model_Tensor:$tokens, Model_Tensor:$rows,
    Model_Tensor:$places);
  let results = (outs Model_Tensor:$dweights);
  let assemblyFormat = Model_OperandsFormat;
}

#endif // QLORA_DIALECTS_TRAIN_TRAINEXPERTOPS_TD
