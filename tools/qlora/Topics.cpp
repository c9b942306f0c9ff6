// SPDX-License-Identifier: MIT

// Short texts; docs/ has the long ones.

#include "tools/qlora/Topics.h"

#include <fmt/format.h>

#include "runtime/Base/CommandLine.h"
#include "tools/qlora/Train.h"

namespace qlora {

static constexpr const char *kOverview =
    R"(usage: qlora COMMAND ...

  train MODEL DATA          train a LoRA adapter; also: train CONFIG.yaml
  plan MODEL                the memory and commands of a training, without it
  memory MODEL              what fits where: by base, length, batch, rank
  show-data MODEL DATA      rows as tokens, with those in the loss marked
  compare DIR DIR ...       runs side by side; with --sweep it trains them
  report DIR                what a run did, from its folder
  info                      this machine: CPU, GPU libraries, tools, caches
  help [TOPIC]              this text, or one about a topic
  completion bash|zsh       a script for the shell

Each command has --help. Topics:)";

namespace {
struct Topic {
  const char *name, *text;
};
} // namespace

static const Topic kTopics[] = {
    {"train", R"(qlora train MODEL DATA [options]

MODEL is a Hugging Face model folder, or a name on the hub (qlora help hub),
DATA a JSONL file. The first run compiles a program for the model and the
options that decide it (batch size, length, rank, ...); it is kept, so that the
next run starts at once. The adapter is in --output-dir, and loads with PEFT.
--dry-run prints the commands of qlora-import, qloracc and qlora-run instead.

qlora train config.yaml takes all from a file; those of axolotl, LLaMA-Factory
and TRL are understood.
)"},
    {"data", R"(A row of DATA is a JSON object on a line of its own, one of

  {"text": "..."}                                  loss on all of it
  {"prompt": "...", "completion": "..."}           loss on the completion
  {"messages": [{"role": "user", "content": "..."}, ...]}   chat
  {"instruction": "...", "input": "...", "output": "..."}   alpaca
  {"conversations": [{"from": "human", "value": "..."}, ...]}   sharegpt

--validation-file names rows to evaluate with. Rows longer than --max-length
are cut. qlora show-data MODEL DATA shows which tokens are in the loss.
)"},
    {"memory", R"(What takes memory, and what makes it less:

  base weights   --load-in-4bit: about a quarter of 16 bits
  activations    smaller --per-device-train-batch-size or --max-length;
                 --gradient-checkpointing: less memory, more time
  adapters       smaller --lora-r; they and their optimizer are small
  all of it      --memory-limit 20GiB (or auto): the compiler recomputes as
                 much as it has to, or says what does not fit

--global-batch-size 64 --auto-find-batch-size finds the batch that fits and is
fastest, and the accumulation steps that make 64 rows of it on all ranks.

qlora memory MODEL says what fits where, qlora plan MODEL [options] what one
training needs, before anything is trained.
)"},
    {"checkpoints",
     R"(A run writes checkpoints into --output-dir every --save-steps, and when it is
stopped (Ctrl-C, SIGTERM). --resume-from-checkpoint latest goes on from the
newest, to the same bits as a run that was not stopped. --save-total-limit N
keeps the newest N, --save-strategy no writes none.
)"},
    {"hub",
     R"(A model can be named as on the Hugging Face hub, in commands and YAML files:

  qlora train Qwen/Qwen3-0.6B data.jsonl
  qlora memory Qwen/Qwen3-0.6B@REVISION      a branch, a tag or a commit

It is looked up in Hugging Face's cache ($HF_HUB_CACHE, $HF_HOME/hub,
~/.cache/huggingface/hub), which qlora shares with transformers; only what is
missing there is fetched, with safetensors alone. Gated and private models need
hf auth login, or HF_TOKEN. HF_HUB_OFFLINE=1 fetches nothing. A folder of that
name wins over the hub.

--push-to-hub uploads the adapter with its model card (README.md) in the end,
as --hub-model-id OWNER/NAME; --hub-private-repo makes it a private one.
)"},
    {"caches", R"(In $XDG_CACHE_HOME/qlora, else ~/.cache/qlora:

  programs   compiled programs of qlora train, 2 GiB at most
  bases      quantised weights, --base-cache-limit
  tokens     tokenised data

Each can be deleted at any time; what is missing is made again. qlora info says
how large they are.
)"},
};

std::vector<std::string> commandNames() {
  return {"train",   "plan",   "memory", "show-data",
          "compare", "report", "info",   "help",
          "completion"};
}

std::vector<std::string> topicNames() {
  std::vector<std::string> names = {"options"};
  for (const Topic &topic : kTopics)
    names.push_back(topic.name);
  return names;
}

StatusOr<std::string> helpText(std::string_view topic) {
  if (topic == "options")
    return fullHelp(trainTool());
  for (const Topic &known : kTopics)
    if (known.name == topic)
      return std::string(known.text);
  std::string names;
  for (const std::string &name : topicNames())
    names += " " + name;
  if (topic.empty())
    return fmt::format("{}{}\n", kOverview, names);
  return Status::invalid("there is no help about '{}'; topics:{}", topic,
                         names);
}

} // namespace qlora
