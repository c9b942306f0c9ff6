// SPDX-License-Identifier: MIT

// Short texts of `qlora help`; docs/ has the long ones.

#include <fmt/format.h>

#include <algorithm>

#include "tools/qlora/Commands.h"
#include "tools/qlora/Train.h"

namespace qlora {

namespace {
struct Topic {
  const char *name, *text;
};
} // namespace

static const Topic kTopics[] = {
    {"train", R"(qlora train MODEL DATA [options]

MODEL is a Hugging Face model folder, or a name on the hub (qlora help hub),
DATA a JSONL file. The first run compiles a program for the model and the
options marked "compiled in" (batch size, length, rank, ...) and keeps it, so
the next run starts at once. The adapter is written to --output-dir and loads
with PEFT. --dry-run prints the commands of qlora-import, qloracc and qlora-run.

qlora train config.yaml takes all options from a file, which may be one of
axolotl, LLaMA-Factory or TRL.
)"},
    {"data", R"(Each line of DATA is a row, a JSON object of one of these forms:

  {"text": "..."}                                  all in the loss
  {"prompt": "...", "completion": "..."}           completion in the loss
  {"messages": [{"role": "user", "content": "..."}, ...]}   chat
  {"instruction": "...", "input": "...", "output": "..."}   alpaca
  {"conversations": [{"from": "human", "value": "..."}, ...]}   sharegpt

--validation-file names rows to evaluate with. Rows longer than --max-length
are cut. qlora show-data MODEL DATA shows which tokens are in the loss.
)"},
    {"memory", R"(What takes memory, and how to reduce it:

  base weights   --load-in-4bit: about a quarter of 16 bits
  activations    smaller --per-device-train-batch-size or --max-length;
                 --gradient-checkpointing: less memory, more time
  adapters       smaller --lora-r; adapters and their optimizer states are small
  all of it      --memory-limit 20GiB (or auto): the compiler recomputes as
                 much as needed, or reports what does not fit

--global-batch-size 64 --auto-find-batch-size finds the fastest batch size that
fits, and the accumulation steps for 64 rows per optimizer step on all ranks.

Before training, qlora memory MODEL lists which GPUs fit, and qlora plan MODEL
[options] prints the memory of one training.
)"},
    {"checkpoints",
     R"(A run writes checkpoints into --output-dir every --save-steps, and when it is
stopped (Ctrl-C, SIGTERM). --resume-from-checkpoint latest resumes from the
newest one, with the same bits as an uninterrupted run. --save-total-limit N
keeps the newest N, --save-strategy no writes none.
)"},
    {"hub",
     R"(A model can be named as on the Hugging Face hub, in commands and YAML files:

  qlora train Qwen/Qwen3-0.6B data.jsonl
  qlora memory Qwen/Qwen3-0.6B@REVISION      a branch, a tag or a commit

qlora shares Hugging Face's cache with transformers ($HF_HUB_CACHE,
$HF_HOME/hub, ~/.cache/huggingface/hub) and fetches only missing files, with
weights in safetensors. Gated and private models need hf auth login or HF_TOKEN.
HF_HUB_OFFLINE=1 fetches nothing. A local folder of that name is preferred.

--push-to-hub uploads the adapter with its model card (README.md) after training
to --hub-model-id OWNER/NAME; --hub-private-repo creates a private repository.
)"},
    {"caches", R"(In $XDG_CACHE_HOME/qlora, else ~/.cache/qlora:

  programs   compiled programs of qlora train, at most 2 GiB
  bases      quantized weights, --base-cache-limit
  tokens     tokenized data

Each can be deleted at any time and is made again when needed. qlora info
prints their sizes.
)"},
};

std::vector<std::string> topicNames() {
  std::vector<std::string> names = {"options"};
  for (const Topic &topic : kTopics)
    names.push_back(topic.name);
  return names;
}

/// Joins words with spaces, in lines of at most 80 columns that begin with two
/// spaces.
static std::string wrapped(const std::vector<std::string> &words) {
  constexpr size_t kWidth = 80;
  std::string text, line = " ";
  for (const std::string &word : words) {
    if (line.size() + 1 + word.size() > kWidth) {
      text += line + "\n";
      line = " ";
    }
    line += " " + word;
  }
  return text + line + "\n";
}

/// Lists the commands, the common options of `qlora train`, and the topics.
static std::string overview() {
  std::string text = "usage: qlora COMMAND ...\n\n";
  for (const Command &command : commands())
    text += fmt::format("  {:<26}{}\n",
                        fmt::format("{} {}", command.name, command.arguments),
                        command.summary);
  std::vector<std::string> flags;
  for (const std::string_view name : trainTool().common)
    flags.push_back(flagSpelling(name));
  return text + "\nEach command has --help. Common options of train:\n" +
         wrapped(flags) + "\nTopics:\n" + wrapped(topicNames());
}

StatusOr<std::string> helpText(std::string_view topic) {
  if (topic.empty())
    return overview();
  if (topic == "options")
    return fullHelp(trainTool());
  for (const Topic &known : kTopics)
    if (known.name == topic)
      return std::string(known.text);
  if (const auto command = std::ranges::find(commands(), topic, &Command::name);
      command != commands().end())
    return commonHelp(command->tool());
  return Status::invalid("there is no help about '{}'; topics:{}", topic,
                         wrapped(topicNames()).substr(1));
}

} // namespace qlora
