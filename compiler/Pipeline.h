// SPDX-License-Identifier: MIT

// The order of the passes: a table of phases, each a short pipeline with the
// reason beside every row. The only place that knows the order.

#ifndef QLORA_COMPILER_PIPELINE_H
#define QLORA_COMPILER_PIPELINE_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/PassManager.h"

#include "runtime/Kernels/WorkspaceSize.h"

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace qlora {

/// What a compile needs to know, already checked for contradictions. The
/// LoRA texts are JSON, as the passes take them.
struct CompileOptions {
  std::string target = "cpu"; ///< cpu or cuda
  int64_t batch = 1; ///< rows of data
  int64_t linesOfRow = 1; ///< in a micro-batch, as the objective has them
  std::vector<int64_t> lengths;
  std::vector<int64_t> buckets; ///< tokens of variants of one row
  std::string computeType = "bfloat16";
  /// What serves weight gradients alone: auto (as computed) or int8.
  std::string loraActivations = "auto";
  /// Of kStoredFormats, for weights that the files have not quantised; empty:
  /// they stay as they are.
  std::string quantizedFormat;
  bool quantizeExperts = false; ///< with a quantizedFormat
  /// Set: what multiplies with LLM.int8 is rounded too, but for columns with
  /// such a magnitude (0: all of it).
  std::optional<double> int8Threshold;
  int64_t block = 64;
  bool doubleQuant = false;
  std::string objective = "none"; ///< none, or as attach-objective has it
  double beta = 0.1;
  double desirableWeight = 1, undesirableWeight = 1;
  int64_t rank = 8;
  double alpha = 8;
  double dropout = 0;
  bool rslora = false;
  bool dora = false;
  bool loraBias = false;
  std::string targets = "\"all-linear\"";
  std::string excludedModules = "[]";
  std::string layers = "[]", layersPattern = "[]";
  std::string rankPattern = "{}";
  std::string alphaPattern = "{}";
  std::string modulesToSave = "[]";
  std::vector<int64_t> trainedTokens; ///< rows of the embedding; empty: none
  std::string bias = "none"; ///< of the base: none, all or lora_only
  bool trainsAll = false; ///< the model itself, without adapters
  double loraPlusRatio = 1;
  double noiseAlpha = 0; ///< NEFTune's
  std::string optimizer = "adamw_torch";
  std::string targetParameters = "[]";
  std::string initA = "kaiming";
  std::string initB = "zero";
  int64_t memoryLimit = 0; ///< bytes per rank; 0: none
  int64_t hostMemoryLimit = 0; ///< pinned bytes per rank; 0: none
  std::string offloadEmbedding = "auto"; ///< auto, true or false
  bool offloadBase = false;   ///< what is frozen, gathered from host memory
  bool offloadStates = false; ///< of optimizers, which update them there
  bool offloadActivations = false; ///< what the forward saves for the backward
  std::string copiedActivations = "auto"; ///< which of them: auto or all
  int64_t shards = 1; ///< ranks that hold the base together
  int64_t updatePieces = 1; ///< ranks that divide the updates
  int64_t trainedPieces = 1; ///< ranks that divide all that is trained
  int64_t tensorRanks = 1;  ///< ranks that share each product
  bool sequenceParallel = false; ///< and the tokens between products
  int64_t contextRanks = 1; ///< ranks that share each line
  int64_t expertRanks = 1;  ///< ranks that share the experts of each layer
  int64_t stages = 1;       ///< of a pipeline, each a program of its own
  int64_t stage = 0;        ///< the one that is compiled
  int64_t stageParts = 1;   ///< of the layers, of a stage (PipelineOrder.h)
  std::vector<int64_t> stageSpeeds; ///< beside each other; empty: equal
  std::string deviceMap = "balanced"; ///< as cut-stages has it
  int64_t chunks = 1; ///< that a pipeline divides a micro-batch into
  bool allForwardsFirst = false; ///< GPipe's order of them, not 1F1B
  /// Whether each of them does its part with a table: auto, true or false.
  std::string divideTables = "auto";
  bool checkpointing = false;
  std::string deviceProfile; ///< path; empty: the shipped default
  std::string dequantForm = "auto";
  int64_t maxBuckets = 4;
  std::string gradientForm = "no"; ///< or how sums are sent: bf16, int8, power_sgd
  int64_t gradientRank = 1; ///< rows of power_sgd's products
  int64_t runRanks = 0; ///< of a run; 0: any number, and a program is the same
  bool remarks = false; ///< of what is done in the end, not of attempts
  /// Optimisations that are left out, by the name of their pass.
  std::set<std::string> disabled;

  bool isEnabled(const char *pass) const { return !disabled.count(pass); }
};

/// What the memory loop decides anew for each attempt.
struct MemoryBudget {
  int64_t activationBytes = 0; ///< 0: no limit
  int64_t residentBytes = 0;
  int64_t stayingBytes = 0; ///< of a base that would come from elsewhere
  int64_t chunks = 0; ///< of a batch, to look at fewer of them; 0: all
  bool siblingsApart = false; ///< no joined GEMMs: what is joined lives longer
  WorkspaceSize workspaces = WorkspaceSize::kLarge;
  bool inOrder = false;    ///< no scratch for a weight ahead of its GEMM
  bool onlyPanels = false; ///< no scratch for whole weights
  bool offloadTables = false; ///< weights that are read by rows: host memory
  bool offloadBase = false;   ///< all frozen ones
  /// What is saved for the backward in host memory, as offload-activations has it.
  std::string copiedValues = "none";
};

struct Phase {
  const char *name;
  void (*build)(mlir::OpPassManager &, const CompileOptions &,
                const MemoryBudget &);
};

/// adapt, step, optimize, program.
llvm::ArrayRef<Phase> phases();

/// Makes each phase a pipeline of qlora-opt's, phase-adapt and so on, with
/// options that leave no pass out.
void registerPhases();

/// Passes that `disabled` may name.
llvm::ArrayRef<llvm::StringLiteral> optionalPasses();

} // namespace qlora

#endif // QLORA_COMPILER_PIPELINE_H
