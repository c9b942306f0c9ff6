// SPDX-License-Identifier: MIT

// Generates text with the entries PREFILL and DECODE of a program: continuous
// batching over the slots of its caches.
//
//   QLORA_ASSIGN_OR_RETURN(Generator generator,
//                          Generator::of(module, device, {2048}));
//   QLORA_RETURN_IF_ERROR(generator.add(std::move(request)));
//   while (generator.isBusy())
//     QLORA_RETURN_IF_ERROR(generator.step(onToken));
//
// A row waits until a slot is free. Its prompt is processed in chunks from its
// first token on, a chunk per step; then each step adds a token. The chunks and
// the slots' sequences have fixed shapes. So a row's logits do not depend on
// the other rows, unless a library GEMM computes a sequence differently
// according to its index.
//
// Used by one thread. `module` and `device` outlive the generator.

#ifndef QLORA_RUNTIME_GENERATE_GENERATOR_H
#define QLORA_RUNTIME_GENERATE_GENERATOR_H

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Device/Device.h"
#include "runtime/Generate/Sampling.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Options/Options.h"

namespace qlora {

struct GenerationRequest {
  int64_t id = 0; ///< chosen by the caller
  std::vector<int32_t> prompt; ///< at least one token
  int64_t maxNewTokens = 0; ///< at least 1; with promptLogProbs at least 0
  SamplingOptions sampling;
  std::vector<int32_t> endTokens; ///< each ends the answer
  int64_t logProbs = 0; ///< number of likeliest tokens to report
  int32_t adapter = -1; ///< of a program with several; -1: the base alone
  /// Reports log-probabilities of the prompt's tokens too. The prompt is then
  /// processed token by token, as answers are.
  bool promptLogProbs = false;
};

enum class FinishReason {
  kNone,   ///< more tokens follow
  kStop,   ///< an end token, which is the last token
  kLength, ///< maxNewTokens, or the slot is full
  kNotFinite, ///< a logit is NaN or infinite, so there is no token
};

/// A new token of a row.
struct GeneratedToken {
  int64_t id = 0; ///< of the request
  std::optional<int32_t> token; ///< none for kNotFinite and maxNewTokens 0
  FinishReason finish = FinishReason::kNone;
  /// The token, then GenerationRequest::logProbs others; empty if that is 0.
  std::vector<TokenLogProb> logProbs;
  /// With the row's first token, if requested: for each token of the prompt,
  /// itself, then GenerationRequest::logProbs others. Empty for the first one.
  std::vector<std::vector<TokenLogProb>> prompt;
};

/// Limits of a program that its tables do not have.
struct GenerationLimits {
  int64_t capacity = 0; ///< tokens of a row, prompt included
  /// RoPE has other frequencies for longer rows. A row that becomes longer than
  /// this is processed again from its first token; 0: no such length.
  int64_t restartLength = 0;
};

/// Returns the limits that a program's options record.
GenerationLimits generationLimits(const Options &options);

/// The entries that have work.
struct GenerationWork {
  bool hasPrompt = false;  ///< PREFILL: a row's prompt is not complete
  bool hasRunning = false; ///< DECODE: a row waits for its next token
};

/// Called for each token. Returns false to cancel the row.
using TokenListener = std::function<bool(const GeneratedToken &token)>;

class Generator {
public:
  /// Returns kInvalidArgument if the program has no entries of generation.
  static StatusOr<Generator> of(const LoadedModule &module, Device &device,
                                GenerationLimits limits);

  /// Adds a row. Returns kInvalidArgument if it cannot be generated: a prompt
  /// that is empty or does not fit a slot, an id that is no token, or a
  /// sampling option.
  Status add(GenerationRequest request);
  /// Drops a row that is waiting or running; does nothing if there is none.
  void cancel(int64_t id);
  /// Processes one chunk of a prompt, or adds a token to each running row.
  Status step(const TokenListener &onToken);
  bool isBusy() const;

  // For ranks that run their entries at the same time, because the entries have
  // collectives: the caller chooses the entry for all of them.
  /// Moves waiting rows to free slots, and returns which entries have work.
  GenerationWork work();
  /// Processes one chunk of a prompt; without prompts, only padding.
  Status prefill(const TokenListener &onToken);
  /// Adds a token to each running row; without such rows, runs only padding.
  Status decode(const TokenListener &onToken);

  /// Tokens of a row, prompt included; rows at a time; tokens of a chunk.
  int64_t capacity() const { return limits.capacity; }
  int64_t slotCount() const { return static_cast<int64_t>(slots.size()); }
  int64_t vocabulary() const { return words; }
  int64_t waiting() const { return static_cast<int64_t>(queue.size()); }
  int64_t running() const;

private:
  /// A row in a slot.
  struct Row {
    GenerationRequest request;
    std::vector<int32_t> answer;
    /// Tokens of the row whose keys and values are in the caches.
    int64_t cached = 0;
    /// Scores of the prompt so far, until the row has its first token.
    std::vector<std::vector<TokenLogProb>> promptLogProbs;

    int64_t length() const {
      return std::ssize(request.prompt) + std::ssize(answer);
    }
    int32_t tokenAt(int64_t index) const {
      const auto i = static_cast<size_t>(index);
      return i < request.prompt.size()
                 ? request.prompt[i]
                 : answer[i - request.prompt.size()];
    }
    bool isScoring() const { return request.promptLogProbs && answer.empty(); }
    bool needsPrefill() const {
      return !isScoring() && (length() - cached > 1 || cached == 0);
    }
  };
  /// Inputs of an entry, one value per token or per sequence.
  struct Inputs {
    std::vector<int32_t> ids, positions, segments, slots, lengths, last,
        adapters;
    explicit Inputs(const qlora_entry &entry);
  };

  Generator(const LoadedModule &module, Device &device,
            const qlora_entry &prefill, const qlora_entry &decode,
            GenerationLimits limits);
  void fillSlots();
  std::optional<size_t> nextPrompt() const;
  bool needsDecode(size_t slot) const {
    return slots[slot] && !slots[slot]->needsPrefill();
  }
  Status run(const qlora_entry &entry, const Inputs &inputs);
  void take(size_t slot, std::span<const float> logits,
            const TokenListener &onToken);
  void choose(Row &row, std::span<const float> logits, GeneratedToken &token);
  std::span<const float> logitsOf(size_t sequence) const {
    return std::span(logits).subspan(sequence * static_cast<size_t>(words),
                                     static_cast<size_t>(words));
  }

  const LoadedModule *module;
  Device *device;
  const qlora_entry *prefillEntry, *decodeEntry;
  GenerationLimits limits;
  int64_t words = 0; ///< of the vocabulary
  std::vector<std::optional<Row>> slots;
  std::deque<GenerationRequest> queue;
  std::vector<float> logits; ///< of the last entry
  size_t nextPrefill = 0;    ///< slot at which the search for a prompt starts
  bool hasPrefilled = false; ///< whether the last step was a prefill
};

} // namespace qlora

#endif // QLORA_RUNTIME_GENERATE_GENERATOR_H
