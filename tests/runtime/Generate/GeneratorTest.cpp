// SPDX-License-Identifier: MIT

// Continuous batching on the CPU device, with a program written by hand. Its
// next token is a function of all cached tokens of a row, so a wrong position,
// slot or length changes the answer.

#include "runtime/Generate/Generator.h"
#include "tests/runtime/DemoTables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

namespace qlora {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int64_t kChunk = 4, kSlots = 2, kCapacity = 32, kWords = 11;
/// Length from which on the program caches other values for the same tokens.
constexpr int32_t kRestart = 20;
constexpr uint32_t kCache = 6; ///< index of the added arena
constexpr int32_t kNanToken = 10; ///< its logits, alone in a row, are NaN

/// Returns what the program caches for a token of a row with `length` tokens.
int32_t cachedValue(int32_t token, int32_t length) {
  return token + (length > kRestart ? 5 : 0);
}

/// Operands: ids, positions, segments, slots, lengths, last, cache, logits;
/// constants: sequences, tokens of a sequence.
void computeLogits(const qlora_kernel_args *args, int64_t begin, int64_t) {
  if (begin != 0)
    return;
  const auto input = [&](size_t operand, int64_t i) {
    return static_cast<const int32_t *>(args->buffers[operand])[i];
  };
  auto *cache = static_cast<int32_t *>(args->buffers[6]);
  auto *logits = static_cast<float *>(args->buffers[7]);
  const int64_t batch = args->constants[0], length = args->constants[1];
  for (int64_t i = 0; i < batch * length; ++i)
    if (input(2, i) != 0)
      cache[input(3, i) * kCapacity + input(1, i)] =
          cachedValue(input(0, i), input(4, i));
  std::fill_n(logits, batch * kWords, 0.0f);
  for (int64_t sequence = 0; sequence < batch; ++sequence) {
    const int64_t token = input(5, sequence);
    int64_t sum = 0;
    for (int32_t at = 0; at <= input(1, token); ++at)
      sum += (at + 1) * cache[input(3, token) * kCapacity + at];
    logits[sequence * kWords + sum % kWords] =
        sum == kNanToken ? std::numeric_limits<float>::quiet_NaN() : 1;
  }
}

/// Returns the greedy answer to a prompt: the definition of the program.
Tokens answerOf(const Tokens &prompt, int64_t count) {
  Tokens row = prompt;
  while (std::ssize(row) < std::ssize(prompt) + count) {
    int64_t sum = 0;
    for (size_t at = 0; at < row.size(); ++at)
      sum += int64_t(at + 1) * cachedValue(row[at], int32_t(row.size()));
    row.push_back(int32_t(sum % kWords));
  }
  return {row.begin() + std::ssize(prompt), row.end()};
}

class GeneratorTest : public testing::Test {
protected:
  GeneratorTest() {
    tables.arenas[kDemoInput].bytes = 512;
    tables.arenas[kDemoResult].bytes = 256;
    tables.arenas.push_back(
        {QLORA_ARENA_CACHE, 64, 4 * kSlots * kCapacity, 0, 0});
    qlora_kernel kernel{};
    kernel.name = "model";
    kernel.function = computeLogits;
    kernel.operand_count = 8;
    kernel.constant_count = 2;
    tables.kernels.push_back(kernel);
    addEntry(QLORA_ENTRY_PREFILL, 1, kChunk);
    addEntry(QLORA_ENTRY_DECODE, kSlots, 1);
  }

  void addEntry(qlora_entry_kind kind, int64_t batch, int64_t length) {
    const auto launch = uint32_t(tables.launches.size());
    tables.launches.push_back({"model", uint32_t(tables.kernels.size()) - 1,
                               uint32_t(tables.constants.size()), 2, 0, 1});
    tables.constants.insert(tables.constants.end(), {batch, length});
    qlora_entry entry{};
    entry.kind = kind;
    entry.batch = batch;
    entry.length = length;
    entry.first_command = uint32_t(tables.commands.size());
    entry.command_count = 1;
    entry.first_binding = uint32_t(tables.bindings.size());
    entry.binding_count = 7;
    qlora_command command{};
    command.kind = QLORA_COMMAND_LAUNCH;
    command.operand_count = 8;
    command.target = launch;
    command.first_operand = uint32_t(tables.operands.size());
    tables.commands.push_back(command);
    tables.entries.push_back(entry);
    const auto tokens = uint64_t(4 * batch * length);
    uint64_t offset = 0;
    for (uint32_t input :
         {QLORA_INPUT_IDS, QLORA_INPUT_POSITIONS, QLORA_INPUT_SEGMENTS,
          QLORA_INPUT_SLOTS, QLORA_INPUT_LENGTHS, QLORA_INPUT_LAST}) {
      const uint64_t bytes =
          input == QLORA_INPUT_LAST ? uint64_t(4 * batch) : tokens;
      tables.bindings.push_back({input, kDemoInput, offset, bytes});
      addOperand(kDemoInput, QLORA_DTYPE_I32, QLORA_READ, offset, bytes);
      offset += 64;
    }
    addOperand(kCache, QLORA_DTYPE_I32, QLORA_READ_WRITE, 0,
               4 * kSlots * kCapacity);
    const auto result = uint64_t(4 * batch * kWords);
    tables.bindings.push_back({QLORA_RESULT_LOGITS, kDemoResult, 0, result});
    addOperand(kDemoResult, QLORA_DTYPE_F32, QLORA_WRITE, 0, result);
  }
  void addOperand(uint32_t arena, qlora_dtype dtype, qlora_access access,
                  uint64_t offset, uint64_t bytes) {
    qlora_operand operand{};
    operand.arena = uint16_t(arena);
    operand.dtype = uint8_t(dtype);
    operand.access = uint8_t(access);
    operand.offset = offset;
    operand.bytes = bytes;
    tables.operands.push_back(operand);
  }

  void load() {
    auto loaded = tables.load();
    ASSERT_TRUE(loaded.isOk()) << loaded.status().message();
    module.emplace(std::move(loaded).value());
    device = std::move(createDevice("cpu", {})).value();
    const Status status = device->load(*module, nullptr);
    ASSERT_TRUE(status.isOk()) << status.message();
  }
  void start() {
    load();
    auto made = Generator::of(*module, *device, {kCapacity, kRestart});
    ASSERT_TRUE(made.isOk()) << made.status().message();
    generator.emplace(std::move(made).value());
  }

  static GenerationRequest request(int64_t id, Tokens prompt, int64_t count) {
    GenerationRequest one;
    one.id = id;
    one.prompt = std::move(prompt);
    one.maxNewTokens = count;
    one.sampling.temperature = 0;
    return one;
  }
  void add(GenerationRequest one) {
    const Status status = generator->add(std::move(one));
    ASSERT_TRUE(status.isOk()) << status.message();
  }
  void step() {
    const Status status = generator->step([&](const GeneratedToken &token) {
      EXPECT_EQ(finished.count(token.id), 0u) << "after the last token";
      if (token.token)
        answers[token.id].push_back(*token.token);
      if (!token.prompt.empty())
        scores[token.id] = token.prompt;
      if (token.finish != FinishReason::kNone)
        finished[token.id] = token.finish;
      return keepGoing ? keepGoing(token) : true;
    });
    ASSERT_TRUE(status.isOk()) << status.message();
  }
  void finish() {
    for (int steps = 0; generator->isBusy(); ++steps) {
      ASSERT_LT(steps, 1000);
      step();
    }
  }

  DemoTables tables;
  std::optional<LoadedModule> module;
  std::unique_ptr<Device> device;
  std::optional<Generator> generator;
  TokenListener keepGoing; ///< called after a token is recorded; may be empty
  std::map<int64_t, Tokens> answers;
  std::map<int64_t, FinishReason> finished;
  std::map<int64_t, std::vector<std::vector<TokenLogProb>>> scores;
};

TEST_F(GeneratorTest, DescribesTheProgram) {
  start();
  EXPECT_EQ(generator->slotCount(), kSlots);
  EXPECT_EQ(generator->capacity(), kCapacity);
  EXPECT_EQ(generator->vocabulary(), kWords);
  EXPECT_FALSE(generator->isBusy());
}

/// Prompts of less than a chunk, of whole chunks, and of a chunk and a token.
TEST_F(GeneratorTest, AnswersARow) {
  start();
  for (const size_t length : {1u, 2u, 4u, 5u, 8u, 11u}) {
    Tokens prompt;
    for (size_t i = 0; i < length; ++i)
      prompt.push_back(int32_t(3 * i + 1) % kWords);
    add(request(int64_t(length), prompt, 6));
    finish();
    EXPECT_EQ(answers[int64_t(length)], answerOf(prompt, 6)) << length;
    EXPECT_EQ(finished[int64_t(length)], FinishReason::kLength);
  }
}

/// More rows than slots, of different lengths: each has the answer that it has
/// alone.
TEST_F(GeneratorTest, AnswersManyRows) {
  start();
  std::map<int64_t, Tokens> expected;
  for (int64_t id = 0; id < 9; ++id) {
    Tokens prompt;
    for (int64_t i = 0; i <= 2 * id; ++i)
      prompt.push_back(int32_t((i * i + id) % kWords));
    expected[id] = answerOf(prompt, 2 + id % 4 * 3);
    add(request(id, prompt, 2 + id % 4 * 3));
  }
  EXPECT_EQ(generator->waiting(), 9);
  step();
  EXPECT_EQ(generator->waiting(), 7);
  EXPECT_EQ(generator->running(), 2);
  finish();
  EXPECT_EQ(answers, expected);
  EXPECT_EQ(finished.size(), 9u);
}

/// In lockstep with other ranks, entries also run when this rank has no row for
/// them. That changes nothing.
TEST_F(GeneratorTest, RunsPaddingForOtherRanks) {
  start();
  const auto take = [&](const GeneratedToken &token) {
    answers[token.id].push_back(*token.token);
    return true;
  };
  const auto runBoth = [&] {
    ASSERT_TRUE(generator->prefill(take).isOk());
    ASSERT_TRUE(generator->decode(take).isOk());
  };
  EXPECT_FALSE(generator->work().hasPrompt);
  EXPECT_FALSE(generator->work().hasRunning);
  runBoth();
  EXPECT_TRUE(answers.empty());
  const Tokens prompt = {5, 1, 8, 3, 3, 9}; // two chunks
  add(request(0, prompt, 3));
  EXPECT_TRUE(generator->work().hasPrompt);
  EXPECT_FALSE(generator->work().hasRunning);
  ASSERT_TRUE(generator->decode(take).isOk());
  EXPECT_TRUE(answers.empty());
  ASSERT_TRUE(generator->prefill(take).isOk());
  ASSERT_TRUE(generator->decode(take).isOk());
  EXPECT_TRUE(answers.empty()) << "before the end of the prompt";
  runBoth();
  EXPECT_TRUE(generator->work().hasRunning);
  runBoth();
  EXPECT_FALSE(generator->isBusy());
  EXPECT_EQ(answers[0], answerOf(prompt, 3));
}

/// Rows that become longer than kRestart are processed again from their first
/// token, because the cached values of all their tokens change.
TEST_F(GeneratorTest, RestartsLongRows) {
  start();
  const Tokens below(kRestart - 3, 2), at(kRestart, 3), above(kRestart + 1, 4);
  add(request(0, below, 8));
  add(request(1, at, 8));
  add(request(2, above, 8));
  finish();
  EXPECT_EQ(answers[0], answerOf(below, 8));
  EXPECT_EQ(answers[1], answerOf(at, 8));
  EXPECT_EQ(answers[2], answerOf(above, 8));
}

TEST_F(GeneratorTest, EndsAtTheCapacity) {
  start();
  add(request(0, Tokens(kCapacity - 3, 1), 100));
  finish();
  EXPECT_EQ(answers[0], answerOf(Tokens(kCapacity - 3, 1), 3));
  EXPECT_EQ(finished[0], FinishReason::kLength);
}

TEST_F(GeneratorTest, EndsAtAnyEndToken) {
  start();
  const Tokens prompt = {5, 1, 8}, all = answerOf(prompt, 20);
  GenerationRequest one = request(0, prompt, 20);
  // Two tokens of the answer: the one that occurs first ends the row.
  one.endTokens = {all[4], all[7]};
  add(one);
  finish();
  const auto isEnd = [&](int32_t token) {
    return token == all[4] || token == all[7];
  };
  const auto end = std::ranges::find_if(all, isEnd);
  EXPECT_EQ(answers[0], Tokens(all.begin(), end + 1));
  EXPECT_EQ(finished[0], FinishReason::kStop);
}

TEST_F(GeneratorTest, ReportsLogProbabilities) {
  start();
  GenerationRequest one = request(0, {5, 1, 8}, 2);
  one.logProbs = 3;
  keepGoing = [&](const GeneratedToken &token) {
    EXPECT_EQ(token.logProbs.size(), 4u);
    EXPECT_EQ(token.logProbs[0].token, *token.token);
    EXPECT_EQ(token.logProbs[1].token, *token.token);
    return true;
  };
  add(one);
  finish();
  EXPECT_EQ(answers[0].size(), 2u);
}

/// Each token of a prompt is scored with the logits after those before it.
TEST_F(GeneratorTest, ScoresPrompts) {
  start();
  const Tokens prompt = {5, 1, 8, 3, 3, 9};
  for (int64_t count : {3, 0}) {
    GenerationRequest one = request(count, prompt, count);
    one.promptLogProbs = true;
    one.logProbs = 1;
    add(one);
  }
  add(request(7, {2, 5}, 12)); // runs in the slot that gets free
  finish();
  EXPECT_EQ(answers[3], answerOf(prompt, 3));
  EXPECT_EQ(answers.count(0), 0u);
  EXPECT_EQ(answers[7], answerOf({2, 5}, 12));
  EXPECT_EQ(finished[0], FinishReason::kLength);
  for (int64_t id : {3, 0}) {
    ASSERT_EQ(scores[id].size(), prompt.size());
    EXPECT_TRUE(scores[id][0].empty());
  }
  const double miss = -std::log(kWords - 1 + std::exp(1.0));
  for (size_t at = 1; at < prompt.size(); ++at) {
    const Tokens before(prompt.begin(), prompt.begin() + std::ptrdiff_t(at));
    const int32_t best = answerOf(before, 1)[0];
    const auto &of = scores[3][at];
    ASSERT_EQ(of.size(), 2u);
    EXPECT_EQ(of[0].token, prompt[at]);
    EXPECT_NEAR(of[0].logProb, miss + (best == prompt[at]), 1e-12);
    EXPECT_EQ(of[1].token, best);
    EXPECT_NEAR(of[1].logProb, miss + 1, 1e-12);
  }
}

/// A prompt that is only scored may fill its slot.
TEST_F(GeneratorTest, ScoresAPromptOfTheCapacity) {
  start();
  GenerationRequest one = request(0, Tokens(kCapacity, 1), 0);
  one.promptLogProbs = true;
  add(one);
  finish();
  EXPECT_EQ(scores[0].size(), size_t(kCapacity));
}

/// The other rows are answered.
TEST_F(GeneratorTest, EndsARowWithoutFiniteLogits) {
  start();
  add(request(0, {kNanToken}, 5));
  add(request(1, {3}, 5));
  finish();
  EXPECT_EQ(answers.count(0), 0u);
  EXPECT_EQ(finished[0], FinishReason::kNotFinite);
  EXPECT_EQ(answers[1], answerOf({3}, 5));
}

/// A row that is sampled gets the same tokens alone and with other rows.
TEST_F(GeneratorTest, SamplesTheSameTokensInAnyBatch) {
  start();
  const auto sampled = [](int64_t id) {
    GenerationRequest one = request(id, Tokens(size_t(1 + id), 7), 9);
    one.sampling.temperature = 2;
    one.sampling.seed = uint64_t(40 + id);
    return one;
  };
  for (int64_t id = 0; id < 5; ++id) {
    add(sampled(id));
    finish();
  }
  const auto alone = std::exchange(answers, {});
  finished.clear();
  for (int64_t id = 5; id-- > 0;)
    add(sampled(id));
  finish();
  EXPECT_EQ(answers, alone);
}

/// A running row gets a token after each chunk of a long prompt.
TEST_F(GeneratorTest, DoesNotStopRowsForALongPrompt) {
  start();
  add(request(0, {1}, 20));
  step();
  add(request(1, Tokens(4 * kChunk, 1), 1));
  while (answers[1].empty())
    step();
  EXPECT_EQ(answers[0].size(), 5u);
  finish();
  EXPECT_EQ(answers[0], answerOf({1}, 20));
}

TEST_F(GeneratorTest, CancelsRows) {
  start();
  for (int64_t id = 0; id < 4; ++id)
    add(request(id, {int32_t(id)}, 8));
  step();
  generator->cancel(0); // is running
  generator->cancel(3); // is waiting
  generator->cancel(77);
  finish();
  EXPECT_EQ(answers[0].size(), 1u);
  EXPECT_EQ(answers.count(3), 0u);
  EXPECT_EQ(answers[1], answerOf({1}, 8));
  EXPECT_EQ(answers[2], answerOf({2}, 8));
}

/// The listener may end its own row by its result, or any row by cancel().
TEST_F(GeneratorTest, CancelsRowsInTheListener) {
  start();
  for (int64_t id = 0; id < 3; ++id)
    add(request(id, {int32_t(id)}, 8));
  size_t before = 0;
  keepGoing = [&](const GeneratedToken &token) {
    if (token.id == 0 && answers[0].size() == 3) {
      before = answers[1].size();
      generator->cancel(1); // its logits are of the same run of decode
    }
    return token.id != 0 || answers[0].size() < 5;
  };
  finish();
  EXPECT_EQ(answers[0].size(), 5u);
  EXPECT_GT(before, 0u);
  EXPECT_EQ(answers[1].size(), before);
  EXPECT_EQ(answers[2], answerOf({2}, 8));
}

TEST_F(GeneratorTest, RefusesRequests) {
  start();
  const auto expectRefused = [&](const GenerationRequest &one,
                                 std::string_view message) {
    const Status status = generator->add(one);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), message);
  };
  expectRefused(request(0, {}, 1),
                "the prompt is empty; it needs at least one token");
  expectRefused(request(0, Tokens(kCapacity, 1), 1),
                "the prompt has 32 tokens, but a row has at most 32, answer "
                "included. Fix: a longer --generation-length");
  expectRefused(request(0, {1}, 0), "max_new_tokens 0 must be at least 1");
  expectRefused(request(0, {1, 11}, 1),
                "token id 11 is outside of the vocabulary of 11");
  expectRefused(request(0, {-1}, 1),
                "token id -1 is outside of the vocabulary of 11");
  GenerationRequest one = request(0, {1}, 1);
  one.sampling.topP = 0;
  expectRefused(one, "top_p 0 must be above 0 and at most 1");
  EXPECT_FALSE(generator->isBusy());
}

TEST_F(GeneratorTest, RefusesAProgramThatDoesNotGenerate) {
  tables.entries.pop_back();
  load();
  const auto made = Generator::of(*module, *device, {kCapacity});
  EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(made.status().message(),
            "'demo' does not generate. Fix: compile it with "
            "--generation-batch 8");
}

TEST_F(GeneratorTest, RefusesAProgramWithoutLogits) {
  tables.entries.back().binding_count = 6;
  load();
  const auto made = Generator::of(*module, *device, {kCapacity});
  EXPECT_EQ(made.status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(made.status().message(),
            "'demo': the entry decode lacks logits. Fix: compile it again");
}

} // namespace
} // namespace qlora
