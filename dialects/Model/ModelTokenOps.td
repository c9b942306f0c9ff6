// SPDX-License-Identifier: MIT

// Row ops for single token ids, for training some rows of an embedding (PEFT's
// trainable_token_indices). Included by ModelOps.td, whose conventions and
// classes apply.
//
//   %list = model.token_list {tokens = [5, 17]} : tensor<2xf32>
//   %is, %rest = model.match_tokens %ids, %list   // [B, T, 2] and [B, T]
//   %x0 = model.embedding %ids, %w
//   %x1 = model.scale_rows %x0, %rest             // 0 for tokens 5 and 17
//   %x = model.linear %is, %rows layout in_out init %x1

#ifndef QLORA_DIALECTS_MODEL_MODELTOKENOPS_TD
#define QLORA_DIALECTS_MODEL_MODELTOKENOPS_TD

def Model_TokenListOp : Model_Row<"token_list"> {
  let summary = "a list of token ids";
  let description = [{
    f32 [k]. (C1) the result has as many elements as there are tokens, at least
    one. (C2) tokens are distinct and in [0, 2^24), so that f32 represents each
    exactly.
  }];
  let ownArguments = (ins DenseI64ArrayAttr:$tokens);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = "attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def Model_MatchTokensOp
    : Model_Row<"match_tokens", [], ["getRowMaps", "isScalarResult"]> {
  let summary = "compares ids with a list of tokens";
  let description = [{
    ids i32 [B, T], tokens f32 [k]. matches [B, T, k] is 1 where the id is that
    token, else 0. rest f32 [B, T] is 1 where the id is none of the tokens, else
    0. (C1) ids is [B, T] i32, and rest [B, T] f32. (C2) matches are as wide as
    tokens.
  }];
  let ownArguments = (ins Model_Tensor:$ids, Model_FloatTensor:$tokens);
  let results = (outs Model_FloatTensor:$matches, Model_FloatTensor:$rest);
  let assemblyFormat = Model_OperandsFormat;
  let hasVerifier = 1;
}

def Model_ScaleRowsOp : Model_Row<"scale_rows", [], ["getRowMaps"]> {
  let summary = "y = x * factor, one factor for each row";
  let description = [{
    x [B, T, C], factors [B, T]. (C1) each row of x has a factor. (C2) y has x's
    type.
  }];
  let ownArguments = (ins Model_FloatTensor:$x, Model_FloatTensor:$factors);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = Model_OperandsFormat;
  let hasVerifier = 1;
}

#endif // QLORA_DIALECTS_MODEL_MODELTOKENOPS_TD
