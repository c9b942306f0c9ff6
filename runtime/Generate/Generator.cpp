// SPDX-License-Identifier: MIT

// Continuous batching: which row runs when, and the inputs of the entries.

#include "runtime/Generate/Generator.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/Device/Program.h"

namespace qlora {

GenerationLimits generationLimits(const Options &options) {
  const auto &restart = options.recordedMetadata("restart_length");
  return {options.integer("generation_length"),
          restart.is_number() ? restart.get<int64_t>() : 0};
}

Generator::Inputs::Inputs(const qlora_entry &entry) {
  const auto tokens = static_cast<size_t>(entry.batch * entry.length);
  for (std::vector<int32_t> *perToken :
       {&ids, &positions, &segments, &slots, &lengths})
    perToken->assign(tokens, 0);
  adapters.assign(tokens, -1);
  last.assign(static_cast<size_t>(entry.batch), 0);
}

Generator::Generator(const LoadedModule &module, Device &device,
                     const qlora_entry &prefill, const qlora_entry &decode,
                     GenerationLimits limits)
    : module(&module), device(&device), prefillEntry(&prefill),
      decodeEntry(&decode), limits(limits),
      slots(static_cast<size_t>(decode.batch)) {
  const qlora_binding *binding = module.binding(decode, QLORA_RESULT_LOGITS);
  words = static_cast<int64_t>(binding->bytes) / 4 / decode.batch;
  logits.resize(slots.size() * static_cast<size_t>(words));
}

StatusOr<Generator> Generator::of(const LoadedModule &module, Device &device,
                                  GenerationLimits limits) {
  const qlora_entry *prefill = nullptr, *decode = nullptr;
  for (const qlora_entry &entry : module.entries()) {
    if (entry.kind == QLORA_ENTRY_PREFILL)
      prefill = &entry;
    if (entry.kind == QLORA_ENTRY_DECODE)
      decode = &entry;
  }
  if (!prefill || !decode)
    return Status::invalid("'{}' does not generate. Fix: compile it with "
                           "--generation-batch 8",
                           module.path());
  for (const qlora_entry *entry : {prefill, decode})
    if (!module.binding(*entry, QLORA_RESULT_LOGITS))
      return Status::dataLoss("'{}': the entry {} lacks logits. Fix: compile "
                              "it again",
                              module.path(), entryKindName(entry->kind));
  return Generator(module, device, *prefill, *decode, limits);
}

Status Generator::add(GenerationRequest request) {
  if (request.prompt.empty())
    return Status::invalid("the prompt is empty; it needs at least one token");
  const bool onlyScores = request.promptLogProbs && request.maxNewTokens == 0;
  if (std::ssize(request.prompt) + !onlyScores > limits.capacity)
    return Status::invalid(
        "the prompt has {} tokens, but a row has at most {}, answer included. "
        "Fix: a longer --generation-length",
        request.prompt.size(), limits.capacity);
  if (request.maxNewTokens < 1 && !onlyScores)
    return Status::invalid("max_new_tokens {} must be at least 1",
                           request.maxNewTokens);
  for (int32_t id : request.prompt)
    if (id < 0 || id >= words)
      return Status::invalid("token id {} is outside of the vocabulary of {}",
                             id, words);
  QLORA_RETURN_IF_ERROR(request.sampling.check());
  queue.push_back(std::move(request));
  return Status::ok();
}

void Generator::cancel(int64_t id) {
  std::erase_if(queue, [&](const GenerationRequest &request) {
    return request.id == id;
  });
  for (std::optional<Row> &row : slots)
    if (row && row->request.id == id)
      row.reset();
}

int64_t Generator::running() const {
  return std::ranges::count_if(
      slots, [](const std::optional<Row> &row) { return row.has_value(); });
}

bool Generator::isBusy() const { return !queue.empty() || running() > 0; }

void Generator::fillSlots() {
  for (std::optional<Row> &row : slots) {
    if (row || queue.empty())
      continue;
    row.emplace();
    row->request = std::move(queue.front());
    queue.pop_front();
  }
}

/// Returns the next slot with a prompt to process.
std::optional<size_t> Generator::nextPrompt() const {
  for (size_t i = 0; i < slots.size(); ++i) {
    const size_t slot = (nextPrefill + i) % slots.size();
    if (slots[slot] && slots[slot]->needsPrefill())
      return slot;
  }
  return std::nullopt;
}

GenerationWork Generator::work() {
  fillSlots();
  GenerationWork work;
  work.hasPrompt = nextPrompt().has_value();
  for (size_t slot = 0; slot < slots.size(); ++slot)
    work.hasRunning |= needsDecode(slot);
  return work;
}

/// Alternates chunks of prompts with decodes, so that a long prompt does not
/// stop the running rows.
Status Generator::step(const TokenListener &onToken) {
  const auto [hasPrompt, hasRunning] = work();
  hasPrefilled = hasPrompt && !(hasRunning && hasPrefilled);
  if (hasPrefilled)
    return prefill(onToken);
  return hasRunning ? decode(onToken) : Status::ok();
}

/// After the last chunk of its prompt, a row gets a token.
Status Generator::prefill(const TokenListener &onToken) {
  Inputs inputs(*prefillEntry);
  const std::optional<size_t> slot = nextPrompt();
  if (!slot)
    return run(*prefillEntry, inputs);
  Row &row = *slots[*slot];
  const int64_t count =
      std::min(prefillEntry->length, row.length() - row.cached);
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    inputs.ids[at] = row.tokenAt(row.cached + i);
    inputs.positions[at] = static_cast<int32_t>(row.cached + i);
    inputs.segments[at] = 1;
    inputs.slots[at] = static_cast<int32_t>(*slot);
    inputs.lengths[at] = static_cast<int32_t>(row.length());
    inputs.adapters[at] = row.request.adapter;
  }
  inputs.last[0] = static_cast<int32_t>(count - 1);
  QLORA_RETURN_IF_ERROR(run(*prefillEntry, inputs));
  row.cached += count;
  if (row.cached < row.length())
    return Status::ok();
  nextPrefill = (*slot + 1) % slots.size();
  take(*slot, logitsOf(0), onToken);
  return Status::ok();
}

Status Generator::decode(const TokenListener &onToken) {
  Inputs inputs(*decodeEntry);
  std::vector<size_t> active;
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    inputs.slots[slot] = inputs.last[slot] = static_cast<int32_t>(slot);
    if (!needsDecode(slot))
      continue;
    Row &row = *slots[slot];
    inputs.ids[slot] = row.tokenAt(row.cached);
    inputs.positions[slot] = static_cast<int32_t>(row.cached);
    inputs.segments[slot] = 1;
    inputs.lengths[slot] = static_cast<int32_t>(row.length());
    inputs.adapters[slot] = row.request.adapter;
    active.push_back(slot);
  }
  QLORA_RETURN_IF_ERROR(run(*decodeEntry, inputs));
  for (size_t slot : active) {
    if (!slots[slot]) // canceled by the listener of an earlier row
      continue;
    ++slots[slot]->cached;
    take(slot, logitsOf(slot), onToken);
  }
  return Status::ok();
}

Status Generator::run(const qlora_entry &entry, const Inputs &inputs) {
  const std::pair<qlora_binding_kind, const std::vector<int32_t> *> all[] = {
      {QLORA_INPUT_IDS, &inputs.ids},
      {QLORA_INPUT_POSITIONS, &inputs.positions},
      {QLORA_INPUT_SEGMENTS, &inputs.segments},
      {QLORA_INPUT_LENGTHS, &inputs.lengths},
      {QLORA_INPUT_SLOTS, &inputs.slots},
      {QLORA_INPUT_LAST, &inputs.last},
      {QLORA_INPUT_ADAPTERS, &inputs.adapters}};
  for (const auto &[kind, values] : all)
    if (const qlora_binding *binding = module->binding(entry, kind))
      QLORA_RETURN_IF_ERROR(device->write(
          binding->arena, binding->offset,
          {reinterpret_cast<const uint8_t *>(values->data()),
           values->size() * sizeof(int32_t)}));
  QLORA_RETURN_IF_ERROR(runEntry(*device, *module, entry, {}));
  const qlora_binding &result = *module->binding(entry, QLORA_RESULT_LOGITS);
  return device->read(result.arena, result.offset,
                      {reinterpret_cast<uint8_t *>(logits.data()),
                       static_cast<size_t>(entry.batch * words) *
                           sizeof(float)});
}

/// Takes the logits after the row's last cached token: they choose the next
/// token, or score the next one of the prompt.
void Generator::take(size_t slot, std::span<const float> rowLogits,
                     const TokenListener &onToken) {
  Row &row = *slots[slot];
  const int64_t shown = row.request.logProbs;
  if (row.isScoring() && row.promptLogProbs.empty())
    row.promptLogProbs.emplace_back();
  GeneratedToken token;
  token.id = row.request.id;
  if (!std::ranges::all_of(rowLogits, [](float x) { return std::isfinite(x); }))
    token.finish = FinishReason::kNotFinite;
  else if (row.cached < row.length())
    return row.promptLogProbs.push_back(
        logProbs(rowLogits, row.tokenAt(row.cached), shown));
  else if (row.request.maxNewTokens == 0)
    token.finish = FinishReason::kLength;
  else
    choose(row, rowLogits, token);
  token.prompt = std::exchange(row.promptLogProbs, {});
  const bool goesOn = onToken(token);
  // The listener may have canceled the row.
  if (slots[slot] && (token.finish != FinishReason::kNone || !goesOn))
    slots[slot].reset();
}

/// Chooses a row's next token, and whether it is the last one.
void Generator::choose(Row &row, std::span<const float> rowLogits,
                       GeneratedToken &token) {
  const GenerationRequest &request = row.request;
  const int32_t chosen = sampleToken(rowLogits, request.sampling,
                                     request.prompt, row.answer,
                                     row.answer.size());
  token.token = chosen;
  if (request.logProbs > 0)
    token.logProbs = logProbs(rowLogits, chosen, request.logProbs);
  row.answer.push_back(chosen);
  if (std::ranges::count(request.endTokens, chosen) > 0)
    token.finish = FinishReason::kStop;
  else if (std::ssize(row.answer) >= request.maxNewTokens ||
           row.length() >= limits.capacity)
    token.finish = FinishReason::kLength;
  if (limits.restartLength > 0 && row.length() == limits.restartLength + 1)
    row.cached = 0;
}

} // namespace qlora
