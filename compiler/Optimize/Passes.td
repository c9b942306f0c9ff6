// SPDX-License-Identifier: MIT

// The passes that choose how ops are computed, in pipeline order;
// compiler/Passes.td includes it.

#ifndef QLORA_COMPILER_OPTIMIZE_PASSES_TD
#define QLORA_COMPILER_OPTIMIZE_PASSES_TD

def RoundAdapters : Pass<"round-adapters", "::mlir::ModuleOp"> {
  let summary = "matmuls read trained weights that were rounded once";
  let description = [{
    A kernel that rounds a trained f32 weight to bf16, because the other operand
    is bf16 (`^` in Kernels.def), reads a bf16 copy of it instead. The copy has
    the layout of the weights, and updates write both. Results stay the same;
    this saves a conversion before every matmul.

    ```mlir
    // %a = model.weight @a : tensor<8x64xf32>
    // %y = model.linear %x, %a : (tensor<…xbf16>, tensor<8x64xf32>) -> …
    // becomes
    // %a = model.weight @a {rounded} : tensor<8x64xbf16>
    // %y = model.linear %x, %a : (tensor<…xbf16>, tensor<8x64xbf16>) -> …
    ```
  }];
}

def PlanDequant : Pass<"plan-dequant", "::mlir::ModuleOp"> {
  let summary = "choose where stored weights are decoded";
  let description = [{
    Chooses by cost for every weight that is not stored in the compute type:
    decode in panels inside each GEMM (`tiled`); once into scratch before it,
    shared by the recompute and backward of a block (`per-use`); or keep it
    decoded (`once`) if memory allows. Each choice is a remark. A GPU has no
    panels, and `tiled` would decode all of W before each GEMM. So on a GPU
    `auto` chooses `per-use` or `once`.
  }];
  let options = [
    Option<"form", "form", "std::string", "\"auto\"",
           "auto, tiled, per-use or once">,
    Option<"residentBytes", "resident-bytes", "int64_t", "0",
           "bytes available for resident weights">,
    TargetOption, ProfileOption,
  ];
  let statistics = [
    Statistic<"inPanels", "tiled", "groups of uses decoded in panels">,
    Statistic<"inScratch", "per-use", "groups of uses decoded into scratch">,
    Statistic<"keptResident", "once", "weights kept decoded">,
  ];
}

def ConcatSiblings : Pass<"concat-siblings", "::qlora::train::StepOp"> {
  let summary = "one GEMM for frozen linears over the same x";
  let description = [{
    If matmuls of one x decode their weights into scratch, the weights are
    decoded into one stacked matrix, and one GEMM computes all outputs. Another
    GEMM computes the input gradient from all output gradients. Applies only if
    views suffice: nothing is copied, and nothing is kept longer.
  }];
}

def ReorderAccumulation
    : Pass<"reorder-accumulation", "::qlora::train::StepOp"> {
  let summary = "compute matmuls with fewer terms first in a sum";
  let description = [{
    If B has fewer rows than W, `y = xW, z = y + aB` becomes `y = aB,
    z = y + xW`.
  }];
}

def FuseRows : Pass<"fuse-rows", "::qlora::train::StepOp"> {
  let summary = "chains of row ops become one row region";
  let description = [{
    Every row op becomes a `model.rows`. A producer and a consumer over the same
    rows are fused if the fused op can precede all readers of its results.
  }];
  let options = [
    Option<"fuse", "fuse", "bool", "true", "false: one kernel per op">,
  ];
}

#endif // QLORA_COMPILER_OPTIMIZE_PASSES_TD
