// SPDX-License-Identifier: MIT

// Defines the phases, each a short pipeline of passes. Pipeline.cpp gives the
// reasons for the order of the passes; no other file depends on it.

#ifndef QLORA_COMPILER_PIPELINE_H
#define QLORA_COMPILER_PIPELINE_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/PassManager.h"

#include "compiler/Passes.h"
#include "runtime/Kernels/WorkspaceSize.h"
#include "runtime/Options/ParallelMesh.h"

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace qlora {

/// Options of a compile, already checked for contradictions: those of passes,
/// which Passes.td describes, and those that more than one pass needs. LoRA
/// options with lists or dictionaries are JSON strings, as in the pass options.
struct CompileOptions {
  CompileOptions();

  std::string target = "cpu"; ///< cpu or cuda
  std::string deviceProfile;  ///< path; empty: the shipped default
  ParallelMesh mesh;
  int64_t runRanks = 0;    ///< ranks of the run; 0: any number
  int64_t stage = 0;       ///< pipeline stage to compile, a separate program
  int64_t memoryLimit = 0; ///< bytes per rank; 0: no limit
  int64_t hostMemoryLimit = 0; ///< pinned bytes per rank; 0: no limit
  bool remarks = false;        ///< for the final plan, not for attempts
  /// Disabled optimizations, by pass name.
  std::set<std::string> disabled;

  bool trains = true; ///< false: only entries of generation; needs them
  int64_t batch = 1; ///< rows of a micro-batch
  int64_t linesOfRow = 1; ///< sequences of a row, according to the objective
  std::vector<int64_t> lengths; ///< tokens of a row, one per variant
  std::vector<int64_t> buckets; ///< tokens of a sequence, for step packing
  std::string computeType = "bfloat16";
  int64_t generationRows = 0; ///< rows of a decode; 0: no generation
  int64_t prefillTokens = 64; ///< tokens of a prefill
  BuildGenerationOptions generation;
  StackAdaptersOptions stacked; ///< only without training

  QuantizeBaseOptions quantize; ///< no format: weights stay as in the files
  /// If set, LLM.int8 matmuls also round their inputs to int8, except columns
  /// with a value of at least this magnitude (0: no exception).
  std::optional<double> int8Threshold;
  AttachLossOptions loss; ///< objective "none": a loss of tokens
  AddNoiseOptions noise;
  AttachAdaptersOptions lora;
  std::string targetParameters = "[]";
  std::vector<int64_t> trainedTokens; ///< token ids; empty: none
  MarkTrainableOptions trained; ///< `all`: full fine-tuning, without adapters

  bool sequenceParallel = false; ///< tp ranks also shard the tokens
  PartitionPipelineOptions pipeline;
  UnrollMicroBatchesOptions unroll; ///< chunks of a micro-batch in a pipeline
  BucketGradientsOptions gradients;
  CompressGradientsOptions compress; ///< form "no": not compressed

  bool checkpointing = false;
  /// Storage of values that only weight gradients read: auto (exact) or int8.
  std::string loraActivations = "auto";
  std::string offloadEmbedding = "auto"; ///< auto, true or false
  bool offloadBase = false; ///< frozen weights, gathered from host memory
  bool offloadActivations = false; ///< keeps saved values in host memory
  /// Which saved values are offloaded: auto or all.
  std::string offloadActivationsPolicy = "auto";
  LowerToProgramOptions lower;
  PlanDequantOptions dequant;
  ShardVocabularyOptions vocabulary;

  bool isEnabled(const char *pass) const { return !disabled.count(pass); }
};

/// Choices of one attempt to fit the plan into the memory limit.
struct MemoryBudget {
  int64_t activationBytes = 0; ///< limit for rematerialize; 0: none
  int64_t residentBytes = 0;   ///< for weights that stay decoded
  int64_t stayingBytes = 0;    ///< for base weights kept on the device
  int64_t chunks = 0; ///< plans only this many chunks of a batch; 0: all
  bool siblingsApart = false; ///< without concat-siblings, which takes memory
  WorkspaceSize workspaces = WorkspaceSize::kLarge;
  bool inOrder = false;    ///< gathers and decodes no weight ahead of its use
  bool onlyPanels = false; ///< no scratch memory for decoded weights
  bool offloadTables = false; ///< weights that are read by rows are on the host
  bool offloadBase = false;   ///< all frozen weights are on the host
  std::string copiedValues = "none"; ///< option `values` of offload-activations
};

struct Phase {
  const char *name;
  void (*build)(mlir::OpPassManager &, const CompileOptions &,
                const MemoryBudget &);
};

/// Returns the phases adapt, step, optimize and program.
llvm::ArrayRef<Phase> phases();

/// Registers each phase as a pipeline of qlora-opt (phase-adapt, ...). The
/// options are chosen so that every pass runs.
void registerPhases();

/// Returns the passes that `disabled` may name.
llvm::ArrayRef<llvm::StringLiteral> optionalPasses();

} // namespace qlora

#endif // QLORA_COMPILER_PIPELINE_H
