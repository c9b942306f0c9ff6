// SPDX-License-Identifier: MIT

// Reads requests between steps of the generator, and writes its tokens.

#include "runtime/Session/GenerationSession.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/Base/JsonText.h"
#include "runtime/Base/StopSignal.h"
#include "runtime/Checkpoint/Adapter.h"
#include "runtime/Device/Program.h"
#include "runtime/Generate/Generator.h"
#include "runtime/Session/AdapterChoice.h"

namespace qlora {

namespace {

using Json = nlohmann::json;

/// Longest line of a request: a prompt of a million tokens.
constexpr size_t kMostLineBytes = 16 << 20;

/// Lines of standard input, read without waiting while rows run.
class Lines {
public:
  /// Waits for input if `waits`. Returns false at the end of the input.
  StatusOr<bool> read(bool waits);
  /// Takes the next complete line; false if there is none.
  bool take(std::string &line);

private:
  std::string buffer;
  bool hasEnded = false;
};

/// Adapters that a request may name, in the order of their indices.
struct RequestAdapters {
  std::vector<std::string> names;
  /// Whether rows choose. Else the program has no adapter, or all rows use it.
  bool isChoice = false;

  StatusOr<int32_t> indexOf(const Json &value) const;
};

class GenerationSession {
public:
  GenerationSession(Generator &generator, RequestAdapters adapters)
      : generator(generator), adapters(std::move(adapters)) {}
  StatusOr<int> run();

private:
  void answer(const std::string &line);
  void refuse(const Json &id, const std::string &why);
  bool send(const GeneratedToken &token);
  Status write(const Json &value);

  Generator &generator;
  const RequestAdapters adapters;
  Lines lines;
  Status failure; ///< of writing
};

} // namespace

StatusOr<bool> Lines::read(bool waits) {
  pollfd input = {STDIN_FILENO, POLLIN, 0};
  while (!hasEnded) {
    const int count = poll(&input, 1, waits ? -1 : 0);
    if (count == 0)
      break;
    if (count < 0 && errno == EINTR)
      break;
    char bytes[1 << 16];
    const ssize_t got = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (got < 0 && errno == EINTR)
      break;
    if (count < 0 || got < 0)
      return Status::unavailable("standard input: {}", std::strerror(errno));
    hasEnded = got == 0;
    buffer.append(bytes, static_cast<size_t>(got));
    if (buffer.size() > kMostLineBytes &&
        buffer.find('\n') == std::string::npos)
      return Status::invalid("standard input: a line has more than {} bytes",
                             kMostLineBytes);
    waits = false;
  }
  return !hasEnded;
}

bool Lines::take(std::string &line) {
  const size_t end = buffer.find('\n');
  if (end == std::string::npos && !(hasEnded && !buffer.empty()))
    return false;
  line = buffer.substr(0, end);
  buffer.erase(0, end == std::string::npos ? end : end + 1);
  return true;
}

Status GenerationSession::write(const Json &value) {
  std::string text = dumpJson(value) + "\n";
  for (size_t done = 0; done < text.size();) {
    const ssize_t wrote =
        ::write(STDOUT_FILENO, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR)
      continue;
    if (wrote < 0)
      return Status::unavailable("standard output: {}", std::strerror(errno));
    done += static_cast<size_t>(wrote);
  }
  return Status::ok();
}

void GenerationSession::refuse(const Json &id, const std::string &why) {
  if (Status status = write({{"id", id}, {"error", why}}); !status.isOk())
    failure = status;
}

static Json pairsOf(const std::vector<TokenLogProb> &tokens) {
  Json pairs;
  for (const auto &[token, logProb] : tokens)
    pairs.push_back({token, logProb});
  return pairs;
}

bool GenerationSession::send(const GeneratedToken &token) {
  if (token.finish == FinishReason::kNotFinite) {
    refuse(token.id, "a logit is NaN or infinite; check the model's weights "
                     "and the adapter's");
    return false;
  }
  Json value = {{"id", token.id}};
  for (const std::vector<TokenLogProb> &ofToken : token.prompt)
    value["prompt_logprobs"].push_back(pairsOf(ofToken));
  if (!token.prompt.empty() && token.token) {
    failure = write(value);
    value.erase("prompt_logprobs");
  }
  if (token.token)
    value["token"] = *token.token;
  if (!token.logProbs.empty())
    value["logprobs"] = pairsOf(token.logProbs);
  if (token.finish != FinishReason::kNone)
    value["finish"] = token.finish == FinishReason::kStop ? "stop" : "length";
  if (failure.isOk())
    failure = write(value);
  return failure.isOk();
}

/// Throws the library's exceptions for values of a wrong type.
static GenerationRequest requestOf(const Json &value, int64_t capacity) {
  GenerationRequest request;
  request.id = value.value("id", int64_t(0));
  request.prompt = value.at("input_ids").get<std::vector<int32_t>>();
  request.maxNewTokens = value.value("max_new_tokens", capacity);
  SamplingOptions &sampling = request.sampling;
  sampling.temperature = value.value("temperature", 0.0);
  sampling.topK = value.value("top_k", int64_t(0));
  sampling.topP = value.value("top_p", 1.0);
  sampling.minP = value.value("min_p", 0.0);
  sampling.repetitionPenalty = value.value("repetition_penalty", 1.0);
  sampling.presencePenalty = value.value("presence_penalty", 0.0);
  sampling.seed = value.value("seed", uint64_t(0));
  request.endTokens = value.value("eos_token_id", std::vector<int32_t>());
  request.logProbs = value.value("logprobs", int64_t(0));
  request.promptLogProbs = value.value("prompt_logprobs", false);
  return request;
}

/// Returns the adapter of a request: its field "adapter", else the first one.
StatusOr<int32_t> RequestAdapters::indexOf(const Json &request) const {
  const auto field = request.find("adapter");
  if (field == request.end())
    return isChoice && !names.empty() ? 0 : -1;
  if (field->is_null()) {
    if (isChoice || names.empty())
      return -1;
    return Status::invalid("adapter null: this program applies the adapter "
                           "'{}' to all rows. Fix: compile it with --max-loras",
                           names.front());
  }
  const auto found = std::ranges::find(names, field->get<std::string>());
  if (found == names.end())
    return Status::invalid("no adapter is called '{}'; there {}",
                           field->get<std::string>(),
                           names.empty() ? "is none"
                                         : fmt::format("are: {}",
                                                       fmt::join(names, ", ")));
  return isChoice ? static_cast<int32_t>(found - names.begin()) : -1;
}

void GenerationSession::answer(const std::string &line) {
  if (line.find_first_not_of(" \t\r") == std::string::npos)
    return;
  const Json value = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object())
    return refuse(nullptr, "the line is not a JSON object");
  const Json id = value.value("id", Json());
  try {
    if (value.contains("cancel"))
      return generator.cancel(value.at("cancel").get<int64_t>());
    GenerationRequest request = requestOf(value, generator.capacity());
    StatusOr<int32_t> adapter = adapters.indexOf(value);
    if (!adapter.isOk())
      return refuse(id, std::string(adapter.status().message()));
    request.adapter = *adapter;
    const Status added = generator.add(std::move(request));
    if (!added.isOk())
      refuse(id, std::string(added.message()));
  } catch (const Json::exception &error) {
    refuse(id, error.what());
  }
}

StatusOr<int> GenerationSession::run() {
  QLORA_RETURN_IF_ERROR(
      write({{"ready",
              {{"slots", generator.slotCount()},
               {"capacity", generator.capacity()},
               {"vocabulary", generator.vocabulary()},
               {"adapters", adapters.names},
               {"base", adapters.isChoice || adapters.names.empty()}}}}));
  bool isOpen = true;
  while (failure.isOk() && stopSignal() == 0) {
    QLORA_ASSIGN_OR_RETURN(isOpen, lines.read(isOpen && !generator.isBusy()));
    for (std::string line; lines.take(line);)
      answer(line);
    if (!generator.isBusy() && !isOpen)
      break;
    QLORA_RETURN_IF_ERROR(generator.step(
        [&](const GeneratedToken &token) { return send(token); }));
  }
  QLORA_RETURN_IF_ERROR(failure);
  return stopSignal() ? 128 + stopSignal() : 0;
}

/// Returns the adapters to use: those of the command line, else the one that
/// the program starts from.
static StatusOr<std::vector<NamedAdapter>>
adaptersOf(const SessionRequest &request, const LoadedRequest &loaded) {
  std::vector<std::string> texts = request.adapters;
  const std::string from = loaded.options.text("adapter_name_or_path");
  if (texts.empty() && !from.empty())
    texts.push_back(from);
  QLORA_ASSIGN_OR_RETURN(std::vector<NamedAdapter> adapters,
                         parseAdapters(texts));
  const int64_t choice = loaded.options.integer("max_loras");
  if (std::ssize(adapters) > std::max<int64_t>(1, choice))
    return Status::invalid("{} adapters are given, but '{}' has space for {}. "
                           "Fix: compile it with --entries generate "
                           "--max-loras {}",
                           adapters.size(), loaded.module.path(),
                           std::max<int64_t>(1, choice), adapters.size());
  return adapters;
}

/// Loads the weights and the adapters.
static Status load(const SessionRequest &request, const LoadedRequest &loaded,
                   std::span<const NamedAdapter> adapters, RankGroup &group,
                   Device &device, LoadedWeights &weights) {
  const auto &[module, options] = loaded;
  const bool isChoice = options.integer("max_loras") > 0;
  const std::string from =
      isChoice || adapters.empty() ? "" : adapters.front().folder;
  if (!from.empty())
    QLORA_RETURN_IF_ERROR(checkAdapterConfig(from, module, options));
  QLORA_ASSIGN_OR_RETURN(
      weights, loadWeights(WeightRequest::of(module, options, group,
                                             request.baseCache, from),
                           device));
  if (isChoice)
    return loadAdapterChoice(module, adapters, device);
  const qlora_entry *first = module.entry(QLORA_ENTRY_INITIALIZE);
  return first && from.empty() ? runEntry(device, module, *first, {})
                               : Status::ok();
}

StatusOr<int> runGenerationSession(const SessionRequest &request,
                                   const RankEnvironment &env) {
  QLORA_ASSIGN_OR_RETURN(LoadedRequest loaded, loadRequest(request));
  if (loaded.module.meshSize() > 1)
    return Status::invalid("'{}' was compiled for {} ranks that work together, "
                           "but generation runs on one; compile it with "
                           "--parallel none",
                           loaded.module.path(), loaded.module.meshSize());
  QLORA_ASSIGN_OR_RETURN(const std::vector<NamedAdapter> adapters,
                         adaptersOf(request, loaded));
  loaded.module.chooseRank(0, 1);
  QLORA_ASSIGN_OR_RETURN(
      RankGroup group,
      RankGroup::join(env, FileDescriptor(), std::chrono::seconds(60)));
  KernelObserver observer;
  QLORA_ASSIGN_OR_RETURN(std::unique_ptr<Device> device,
                         openDevice(request, loaded.module, loaded.options,
                                    group, env, observer));
  LoadedWeights weights;
  QLORA_RETURN_IF_ERROR(
      load(request, loaded, adapters, group, *device, weights));
  QLORA_ASSIGN_OR_RETURN(
      Generator generator,
      Generator::of(loaded.module, *device, generationLimits(loaded.options)));
  RequestAdapters named;
  for (const NamedAdapter &adapter : adapters)
    named.names.push_back(adapter.name);
  named.isChoice = loaded.options.integer("max_loras") > 0;
  QLORA_ASSIGN_OR_RETURN(
      const int code, GenerationSession(generator, std::move(named)).run());
  if (weights.base)
    weights.base->finish();
  return code;
}

} // namespace qlora
