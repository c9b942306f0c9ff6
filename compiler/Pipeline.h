// SPDX-License-Identifier: MIT

// Defines the phases, each a short pipeline of passes. Pipeline.cpp gives the
// reasons for the order of the passes; no other file depends on it.

#ifndef QLORA_COMPILER_PIPELINE_H
#define QLORA_COMPILER_PIPELINE_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/PassManager.h"

#include "compiler/Passes.h"
#include "runtime/Base/ParallelMesh.h"
#include "runtime/Kernels/WorkspaceSize.h"

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace qlora {

/// Options of a compile, already checked for contradictions. LoRA options with
/// lists or dictionaries are JSON strings, as in the pass options.
struct CompileOptions {
  std::string target = "cpu"; ///< cpu or cuda
  bool trains = true; ///< false: only entries of generation; needs them
  int64_t batch = 1; ///< rows of a micro-batch
  int64_t linesOfRow = 1; ///< sequences of a row, according to the objective
  std::vector<int64_t> lengths; ///< tokens of a row, one per variant
  std::vector<int64_t> buckets; ///< tokens of a sequence, for step packing
  int64_t generationRows = 0;   ///< rows of a decode; 0: no generation
  int64_t generationLength = 0; ///< tokens of a row in generation
  int64_t prefillTokens = 64;   ///< tokens of a prefill
  std::string cacheType = "auto"; ///< a value of build-generation
  /// Adapters among which a row of a generation chooses; 0: the adapter of
  /// `lora`. Only without training.
  int64_t maxAdapters = 0;
  std::string computeType = "bfloat16";
  /// Storage of values that only weight gradients read: auto (exact) or int8.
  std::string loraActivations = "auto";
  /// Format (a name in kStoredFormats) for weights that are not quantized in
  /// the model files. If empty, these weights stay unquantized.
  std::string quantizedFormat;
  bool quantizeExperts = false; ///< only with a quantizedFormat
  /// If set, LLM.int8 matmuls also round their inputs to int8, except columns
  /// with a value of at least this magnitude (0: no exception).
  std::optional<double> int8Threshold;
  int64_t block = 64; ///< values that share a quantization scale
  bool doubleQuant = false;
  std::string objective = "none"; ///< none, or a value of attach-loss
  double beta = 0.1;
  double desirableWeight = 1, undesirableWeight = 1;
  AttachAdaptersOptions lora;
  std::vector<int64_t> trainedTokens; ///< token ids; empty: none
  std::string bias = "none"; ///< trainable base biases: none, all or lora_only
  bool trainsAll = false; ///< full fine-tuning, without adapters
  double loraPlusRatio = 1;
  double noiseAlpha = 0; ///< NEFTune
  std::string optimizer = "adamw_torch";
  std::string targetParameters = "[]";
  int64_t memoryLimit = 0; ///< bytes per rank; 0: no limit
  int64_t hostMemoryLimit = 0; ///< pinned bytes per rank; 0: no limit
  std::string offloadEmbedding = "auto"; ///< auto, true or false
  bool offloadBase = false;   ///< frozen weights, gathered from host memory
  bool offloadStates = false; ///< optimizer states, updated in host memory
  bool offloadActivations = false; ///< keeps saved values in host memory
  /// Which saved values are offloaded: auto or all.
  std::string offloadActivationsPolicy = "auto";
  ParallelMesh mesh;
  bool sequenceParallel = false; ///< tp ranks also shard the tokens
  int64_t stage = 0;        ///< pipeline stage to compile, a separate program
  int64_t stageParts = 1;   ///< virtual stages per stage (PipelineOrder.h)
  std::vector<int64_t> stageSpeeds; ///< relative speed per stage; empty: equal
  std::string deviceMap = "balanced"; ///< a value of partition-pipeline
  int64_t chunks = 1; ///< chunks of a micro-batch in a pipeline
  bool allForwardsFirst = false; ///< GPipe's order instead of 1F1B
  /// Whether fsdp ranks compute with their own rows of the embedding and the LM
  /// head: auto, true or false.
  std::string shardEmbeddings = "auto";
  bool checkpointing = false;
  std::string deviceProfile; ///< path; empty: the shipped default
  std::string dequantizeForm = "auto";
  int64_t gradientBuckets = 4;
  std::string gradientForm = "no"; ///< compression: bf16, int8, power_sgd
  int64_t gradientRank = 1; ///< rank of power_sgd
  int64_t runRanks = 0; ///< ranks of the run; 0: any number
  bool remarks = false; ///< for the final plan, not for attempts
  /// Disabled optimizations, by pass name.
  std::set<std::string> disabled;

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
