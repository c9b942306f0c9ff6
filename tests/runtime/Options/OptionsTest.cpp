// SPDX-License-Identifier: MIT

// Options: layers, spellings, and errors.

#include "runtime/Options/Options.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "runtime/Base/JsonText.h"
#include "runtime/Options/OptionValue.h"

using namespace qlora;

static std::string writeFile(const std::string &name, const std::string &text) {
  std::string path = testing::TempDir() + name;
  std::ofstream(path) << text;
  return path;
}

static OptionSetting setting(const char *name, const char *text) {
  return {findOption(optionTable(), name), text, std::string("--") + name};
}

TEST(Options, DefaultsAreHuggingFaces) {
  Options options;
  EXPECT_EQ(options.number("learning_rate"), 5e-5);
  EXPECT_EQ(options.text("lr_scheduler_type"), "linear");
  EXPECT_EQ(options.integer("lora_r"), 8);
  EXPECT_EQ(options.lengths("max_length"), std::vector<int64_t>{1024});
  EXPECT_TRUE(options.validate().isOk());
}

TEST(Options, LaterLayersWin) {
  Options options;
  auto yaml = writeFile("a.yaml", "lr: 1e-5\nseed: \"7\"\nlora_rank: 4\n");
  ASSERT_TRUE(options
                  .applyRecorded(R"({"learning_rate": 0.5, "lora_r": 4,
                                     "warmup_steps": 3, "vocab_size": 99})")
                  .isOk());
  ASSERT_TRUE(options.applyYaml(yaml).isOk());
  OptionSetting flags[] = {setting("seed", "8")};
  ASSERT_TRUE(options.applySettings(flags).isOk());
  EXPECT_EQ(options.number("learning_rate"), 1e-5);
  EXPECT_EQ(options.integer("warmup_steps"), 3);
  EXPECT_EQ(options.integer("seed"), 8);
  EXPECT_EQ(options.recordedMetadata("vocab_size"), 99);
  EXPECT_EQ(options.source("seed"), Options::Source::kCommandLine);
}

TEST(Options, CompiledValuesCannotChange) {
  Options options;
  ASSERT_TRUE(options.applyRecorded(R"({"lora_r": 4})").isOk());
  OptionSetting same[] = {setting("lora_r", "4")};
  EXPECT_TRUE(options.applySettings(same).isOk());
  OptionSetting other[] = {setting("lora_r", "16")};
  EXPECT_EQ(options.applySettings(other).message(),
            "--lora_r: the program was compiled with 4 and cannot run with 16; "
            "compile it again with --lora-r 16, or run it with --lora-r 4");
}

TEST(Options, YamlPathsAreRelativeToTheFile) {
  std::filesystem::create_directories(testing::TempDir() + "case");
  auto yaml = writeFile("case/t.yaml", "model: model/\ntrain_file: ../d.jsonl"
                                       "\nvalidation_file: ~\n");
  Options options;
  ASSERT_TRUE(options.applyYaml(yaml).isOk());
  auto folder = std::filesystem::absolute(testing::TempDir());
  EXPECT_EQ(options.text("model_name_or_path"), folder / "case/model");
  EXPECT_EQ(options.text("train_file"), folder / "d.jsonl");
  EXPECT_EQ(options.text("validation_file"), "");
}

TEST(Options, OutputsAreWhereTheCommandRunsAndNotRecorded) {
  std::filesystem::create_directories(testing::TempDir() + "outputs");
  auto yaml = writeFile("outputs/t.yaml", "output_dir: adapters/one\n"
                                          "overwrite_output_dir: true\n");
  Options compiled;
  ASSERT_TRUE(compiled.applyYaml(yaml).isOk());
  EXPECT_EQ(compiled.text("output_dir"),
            std::filesystem::current_path() / "adapters/one");
  EXPECT_FALSE(compiled.recorded().contains("output_dir"));
  EXPECT_FALSE(compiled.recorded().contains("overwrite_output_dir"));
  // A program of an earlier compiler may have recorded output_dir.
  Options atRunTime;
  ASSERT_TRUE(atRunTime
                  .applyRecorded(R"({"output_dir": "/elsewhere",
                                     "overwrite_output_dir": true})")
                  .isOk());
  EXPECT_EQ(atRunTime.text("output_dir"), "out");
  EXPECT_FALSE(atRunTime.boolean("overwrite_output_dir"));
}

TEST(Options, AnInputGivenTwiceIsRefusedAndOfOthersTheLastWins) {
  auto apply = [](std::vector<OptionSetting> flags) {
    Options options;
    return options.applySettings(flags).message();
  };
  EXPECT_EQ(
      apply({setting("model_name_or_path", "a"),
             setting("model_name_or_path", "b")}),
      "--model_name_or_path: takes one path, but got 'a' and 'b'; remove one");
  EXPECT_EQ(apply({setting("model_name_or_path", "a/"),
                   setting("model_name_or_path", "./a")}),
            "");
  EXPECT_EQ(apply({setting("output_dir", "a"), setting("output_dir", "b")}),
            "");
  EXPECT_EQ(apply({setting("lora_r", "4"), setting("lora_r", "8")}), "");
  // A flag takes precedence over a file.
  Options options;
  ASSERT_TRUE(
      options.applyYaml(writeFile("p.yaml", "train_file: a.jsonl\n")).isOk());
  OptionSetting other[] = {setting("train_file", "b.jsonl")};
  EXPECT_TRUE(options.applySettings(other).isOk());
}

TEST(Options, AChoiceOfAPathStaysAWord) {
  auto yaml = writeFile("c.yaml", "chat_template: qwen3-training\n");
  Options options;
  ASSERT_TRUE(options.applyYaml(yaml).isOk());
  EXPECT_EQ(options.text("chat_template"), "qwen3-training");
  OptionSetting flags[] = {setting("chat_template", "./qwen3-training")};
  ASSERT_TRUE(options.applySettings(flags).isOk());
  EXPECT_EQ(options.text("chat_template"),
            std::filesystem::current_path() / "qwen3-training");
}

TEST(Options, AnEmptyFileSetsNothing) {
  EXPECT_EQ(Options().applyYaml(writeFile("empty.yaml", "")).message(), "");
  EXPECT_EQ(Options().applyYaml("/nonexistent.yaml").message(),
            "cannot read '/nonexistent.yaml': No such file or directory");
  EXPECT_EQ(Options().applyYaml("/tmp").message(),
            "cannot read '/tmp': Is a directory");
}

TEST(Options, EqualKeysOfAFileAreNoContradiction) {
  Options options;
  const std::string text = "lora_r: 4\nlora_rank: 4\ndtype: bf16\n"
                           "bf16: true\nbnb_4bit_compute_dtype: bfloat16\n";
  EXPECT_EQ(options.applyYaml(writeFile("equal.yaml", text)).message(), "");
  EXPECT_EQ(options.integer("lora_r"), 4);
  EXPECT_EQ(options.text("compute_dtype"), "bfloat16");
}

TEST(Options, YamlErrorsNameTheLine) {
  struct {
    const char *text, *message;
  } cases[] = {
      {"\nlearning_rat: 1\n",
       ":2: 'learning_rat': is not an option; did you mean 'learning_rate'?"},
      {"lora_r: many\n", ":1: 'lora_r': expects an integer, but got 'many'"},
      {"lora_r: 0\n",
       ":1: 'lora_r': expects a number from 1 to 65536, but got 0"},
      {"lora_r: 4\nlora_rank: 8\n",
       ":2: 'lora_rank': is 8, but 'lora_r' in line 1 is 4, and both set "
       "lora_r; remove one"},
      {"bf16: true\ndtype: float32\n",
       ":2: 'dtype': is float32, but 'bf16' in line 1 is bfloat16, and both "
       "set compute_dtype; remove one"},
      {"seed: 1\nseed: 2\n", ":2: 'seed' is given twice"},
      {"optim: sgd\n", ":1: 'optim': 'sgd' is not supported; choose from: "
                       "adamw_torch, adamw_bnb_8bit, lion, adafactor, "
                       "schedule_free_adamw, muon, rmsprop"},
      {"- a\n", ": expects 'key: value' lines"},
      {"lora_target_linear: false\n", ":1: 'lora_target_linear': can only be "
                                      "true; set lora_target_modules instead"},
      {"learning_rate: [1, 2]\n",
       ":1: 'learning_rate': expects one value, but got '[1,2]'"},
      {"learning_rate: nan\n",
       ":1: 'learning_rate': expects a number, but got 'nan'"},
  };
  for (const auto &c : cases) {
    auto yaml = writeFile("bad.yaml", c.text);
    EXPECT_EQ(Options().applyYaml(yaml).message(), yaml + c.message);
  }
  auto broken = writeFile("broken.yaml", "seed: 1\nlr: [1\n");
  EXPECT_NE(Options().applyYaml(broken).message().find("broken.yaml:"),
            std::string::npos);
}

/// Each level repeats the previous level ten times with YAML aliases. The
/// expanded text has more values than the limit.
TEST(Options, AliasesRepeatABoundedNumberOfValues) {
  std::string text = "lora_rank_pattern:\n  a0: &a0 q_proj\n";
  for (int level = 1; level < 8; ++level) {
    text += fmt::format("  a{}: &a{} [", level, level);
    for (int i = 0; i < 10; ++i)
      text += fmt::format("{}*a{}", i ? ", " : "", level - 1);
    text += "]\n";
  }
  auto yaml = writeFile("aliases.yaml", text);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(Options().applyYaml(yaml).message(),
            yaml + ":1: 'lora_rank_pattern': repeats too many values with "
                   "aliases (*NAME). Fix: write the value without aliases");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

/// Typical use of a YAML alias: two options get the same value.
TEST(Options, AnAliasIsItsValue) {
  Options options;
  ASSERT_TRUE(options
                  .applyYaml(writeFile(
                      "alias.yaml", "lora_target_modules: &modules [q_proj]\n"
                                    "modules_to_save: *modules\n"))
                  .isOk());
  EXPECT_EQ(options.names("modules_to_save"),
            (std::vector<std::string>{"q_proj"}));
  // A long list without aliases is allowed.
  std::string tokens = "trainable_token_indices: [0";
  for (int token = 1; token < 50000; ++token)
    tokens += fmt::format(",{}", token);
  EXPECT_TRUE(
      options.applyYaml(writeFile("long.yaml", tokens + "]\n")).isOk());
}

TEST(Options, ListsAndMaps) {
  Options options;
  auto yaml = writeFile("l.yaml", "lora_rank_pattern: {\"q_proj\": 4}\n"
                                  "lora_target_modules: [q_proj, v_proj]\n"
                                  "max_length: [1024, 512]\n"
                                  "memory_limit: 1.5GiB\n");
  ASSERT_TRUE(options.applyYaml(yaml).isOk());
  EXPECT_EQ(options.numberMap("lora_rank_pattern").at("q_proj"), 4);
  EXPECT_EQ(options.names("lora_target_modules").size(), 2u);
  EXPECT_EQ(options.lengths("max_length"), (std::vector<int64_t>{512, 1024}));
  EXPECT_EQ(options.integer("memory_limit"), 3ll << 29);
}

TEST(Options, AScaleOfZeroIsRefused) {
  const auto refusal = [](const std::string &text) {
    Options options;
    EXPECT_TRUE(options.applyYaml(writeFile("a.yaml", text)).isOk());
    return options.validate().message();
  };
  EXPECT_EQ(refusal("lora_alpha: 0\n"),
            "lora_alpha is 0, so the adapter is multiplied by alpha / rank = 0 "
            "and does not train. Fix: --lora-alpha 16");
  EXPECT_EQ(refusal("lora_alpha_pattern: {q_proj: 0}\n"),
            "lora_alpha_pattern: the alpha of 'q_proj' is 0, so its adapters "
            "do not train. Fix: exclude it with --exclude-modules q_proj");
  EXPECT_EQ(refusal("lora_alpha: 0\nfinetuning_type: full\n"), "");
}

TEST(Options, KindsOfAdaptersThatPeftDoesNotJoin) {
  const auto refusal = [](const std::string &yaml) {
    Options options;
    EXPECT_TRUE(options.applyYaml(writeFile("k.yaml", yaml)).isOk());
    return options.validate().message();
  };
  EXPECT_EQ(refusal("use_dora: true\n"), "");
  EXPECT_EQ(refusal("lora_bias: true\n"), "");
  EXPECT_EQ(refusal("use_dora: true\ntarget_parameters: [experts.down_proj]\n"),
            "use_dora conflicts with target_parameters: PEFT supports "
            "use_dora for modules, not for parameters; remove one");
  EXPECT_EQ(refusal("use_dora: true\nlora_bias: true\n"),
            "lora_bias conflicts with use_dora, as in PEFT; remove one");
  EXPECT_EQ(refusal("init_lora_weights: pissa_niter_16\nbias: all\n"), "");
  EXPECT_EQ(refusal("init_lora_weights: loftq\n"),
            "init_lora_weights loftq starts from the quantization error of 4 "
            "bits; add --load-in-4bit");
  EXPECT_EQ(refusal("init_lora_weights: loftq\nload_in_4bit: true\n"
                    "loftq_config: {loftq_bits: 4, loftq_iter: 1}\n"),
            "");
  EXPECT_EQ(refusal("init_lora_weights: loftq\nload_in_4bit: true\n"
                    "loftq_config: {loftq_iter: 5}\n"),
            "loftq_config: 'loftq_iter: 5' is not supported; use loftq_bits 4 "
            "and loftq_iter 1");
  EXPECT_EQ(
      refusal("loftq_config: {loftq_bits: 4}\n"),
      "loftq_config needs --init-lora-weights loftq; add that, or remove it");
  EXPECT_EQ(refusal("init_lora_weights: olora\n"
                    "target_parameters: [mlp.experts.gate_up_proj]\n"),
            "target_parameters conflicts with init_lora_weights olora; use "
            "init_lora_weights true");
  EXPECT_EQ(refusal("finetuning_type: full\nbias: all\n"),
            "bias conflicts with finetuning_type full, which trains the "
            "model's own weights; remove one");
  EXPECT_EQ(refusal("lora_bias: true\ninit_lora_weights: gaussian\n"),
            "lora_bias needs init_lora_weights true or false, as in PEFT, but "
            "got gaussian");
  EXPECT_EQ(refusal("finetuning_type: full\nload_in_4bit: true\n"),
            "load_in_4bit conflicts with finetuning_type full, which trains "
            "the model's own weights; remove one");
  EXPECT_EQ(refusal("finetuning_type: full\nmodules_to_save: [lm_head]\n"),
            "modules_to_save conflicts with finetuning_type full, which trains "
            "the model's own weights; remove one");
  EXPECT_EQ(refusal("finetuning_type: full\ntrainable_token_indices: [5]\n"),
            "trainable_token_indices conflicts with finetuning_type full, "
            "which trains the model's own weights; remove one");
}

TEST(Options, TrainedTokensAreWordsOnce) {
  const auto tokensOf = [](const std::string &yaml) {
    Options options;
    const Status status = options.applyYaml(writeFile("t.yaml", yaml));
    return status.isOk() ? dumpJson(options.value("trainable_token_indices"))
                         : status.message();
  };
  EXPECT_EQ(tokensOf("lora_r: 4\n"), "[]");
  // The order of tokens is preserved, because rows of an adapter follow it.
  EXPECT_EQ(tokensOf("trainable_token_indices: [32000, 0, 17]\n"),
            "[32000,0,17]");
  EXPECT_EQ(tokensOf("peft_trainable_token_indices: 5, 4\n"), "[5,4]");
  for (const auto &[value, message] :
       {std::pair("[5, 17, 5]", "has 5 twice"),
        std::pair("[-5]", "expects a number from 0 to 16777215, but got -5"),
        std::pair("{embed_tokens: [5]}", "a list of token ids")})
    EXPECT_NE(tokensOf(fmt::format("trainable_token_indices: {}\n", value))
                  .find(message),
              std::string::npos)
        << value;
}

TEST(Options, ABaseHasOneFormat) {
  const auto formatOf = [](const std::string &yaml) {
    Options options;
    EXPECT_TRUE(options.applyYaml(writeFile("b.yaml", yaml)).isOk());
    const Status status = options.validate();
    return status.isOk() ? options.quantizedFormat() : status.message();
  };
  EXPECT_EQ(formatOf("lora_r: 4\n"), "");
  EXPECT_EQ(formatOf("load_in_4bit: true\n"), "nf4");
  EXPECT_EQ(formatOf("load_in_4bit: true\nbnb_4bit_quant_type: fp4\n"), "fp4");
  EXPECT_EQ(formatOf("load_in_8bit: true\n"), "llm_int8");
  EXPECT_EQ(formatOf("quant_method: mxfp4\n"), "mxfp4");
  EXPECT_EQ(formatOf("quant_method: fp8\nload_in_4bit: true\n"),
            "load_in_4bit conflicts with quant_method fp8: the base has one "
            "format; remove one");
  EXPECT_EQ(formatOf("quant_method: fp8\nfinetuning_type: full\n"),
            "quant_method conflicts with finetuning_type full, which trains "
            "the model's own weights; remove one");
}

TEST(Options, ModulesAndLayersThatGetNoAdapter) {
  EXPECT_EQ(Options().value("exclude_modules"), nlohmann::json::array());
  EXPECT_EQ(Options().value("layers_to_transform"), nlohmann::json::array());
  Options options;
  auto yaml = writeFile("e.yaml", "exclude_modules: '.*head'\n"
                                  "layers_to_transform: [3, 0]\n"
                                  "layers_pattern: h\n");
  ASSERT_TRUE(options.applyYaml(yaml).isOk());
  EXPECT_EQ(options.value("exclude_modules"), ".*head");
  EXPECT_EQ(options.lengths("layers_to_transform"),
            (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(options.names("layers_pattern"), std::vector<std::string>{"h"});
  yaml = writeFile("e.yaml", "exclude_modules: null\n"
                             "layers_to_transform: 2\n");
  ASSERT_TRUE(options.applyYaml(yaml).isOk());
  EXPECT_EQ(options.value("exclude_modules"), nlohmann::json::array());
  EXPECT_EQ(options.lengths("layers_to_transform"), std::vector<int64_t>{2});
}

TEST(Options, AMemoryLimitOfTheMachine) {
  Options options;
  auto yaml = writeFile("a.yaml", "memory_limit: auto\n");
  ASSERT_TRUE(options.applyYaml(yaml).isOk());
  EXPECT_EQ(options.integer("memory_limit"), kAutoSize);
  // For `auto`, the compiler chooses a limit and records it in bytes. At run
  // time, `auto` in the YAML file keeps the recorded limit.
  Options atRunTime;
  ASSERT_TRUE(atRunTime.applyRecorded(R"({"memory_limit": 4096})").isOk());
  ASSERT_TRUE(atRunTime.applyYaml(yaml).isOk());
  EXPECT_TRUE(atRunTime.validate().isOk());
  EXPECT_EQ(atRunTime.integer("memory_limit"), 4096);
  auto wrong = writeFile("w.yaml", "memory_limit: most\n");
  EXPECT_FALSE(Options().applyYaml(wrong).isOk());
}

TEST(Options, ASmallSizeNeedsAUnit) {
  const OptionRow *row = findOption(optionTable(), "memory_limit");
  auto parse = [&](const char *text) {
    auto value = parseOptionText(*row, text);
    return value.isOk() ? dumpJson(*value) : value.status().message();
  };
  EXPECT_EQ(parse("20"),
            "'20' has no unit and would be bytes; did you mean 20GiB?");
  EXPECT_EQ(parse("8000"),
            "'8000' has no unit and would be bytes; did you mean 8000MiB?");
  EXPECT_EQ(parse("1.5"),
            "'1.5' has no unit and would be bytes; did you mean 1.5GiB?");
  EXPECT_EQ(parse("0"), "0");
  EXPECT_EQ(parse("20B"), "20");
  EXPECT_EQ(parse("1048576"), "1048576");
  EXPECT_EQ(parse("21474836480"), "21474836480");
  EXPECT_EQ(Options().applyYaml(writeFile("s.yaml", "memory_limit: 20\n"))
                .message(),
            testing::TempDir() + "s.yaml:1: 'memory_limit': '20' has no unit "
                                 "and would be bytes; did you mean 20GiB?");
}

TEST(Options, RecordedRoundTrips) {
  Options compiled;
  OptionSetting flags[] = {setting("lora_r", "16"),
                           setting("train_file", "d.jsonl"),
                           setting("lora_alpha_pattern", "{q_proj: 0.5}"),
                           setting("adam_epsilon", "1e-08")};
  ASSERT_TRUE(compiled.applySettings(flags).isOk());
  auto recorded = compiled.recorded({{"vocab_size", 256}});
  EXPECT_FALSE(recorded.contains("output_dir"));
  Options atRunTime;
  ASSERT_TRUE(atRunTime.applyRecorded(dumpJson(recorded)).isOk());
  EXPECT_EQ(atRunTime.recorded({{"vocab_size", 256}}), recorded);
  EXPECT_TRUE(atRunTime.text("train_file").starts_with("/"));
}

TEST(Options, ResolvedYamlReadsBack) {
  Options options;
  auto yaml = writeFile("r.yaml", options.resolvedYaml());
  Options again;
  ASSERT_TRUE(again.applyYaml(yaml).isOk());
  EXPECT_EQ(again.recorded()["lora_target_modules"], "all-linear");
}

TEST(Options, ContradictionsAreRefused) {
  Options options;
  OptionSetting flags[] = {setting("per_device_eval_batch_size", "3")};
  ASSERT_TRUE(options.applySettings(flags).isOk());
  EXPECT_EQ(options.validate().message(),
            "--per-device-eval-batch-size (3) must be 0 or equal "
            "--per-device-train-batch-size (8): evaluation uses the "
            "training batch size");
  Options block;
  OptionSetting odd[] = {setting("bnb_4bit_blocksize", "96")};
  ASSERT_TRUE(block.applySettings(odd).isOk());
  EXPECT_EQ(block.validate().message(),
            "--bnb-4bit-blocksize: expects a power of two from 64 to 4096, but "
            "got 96");
  Options ofYaml;
  ASSERT_TRUE(
      ofYaml.applyYaml(writeFile("o.yaml", "bnb_4bit_blocksize: 96\n")).isOk());
  EXPECT_EQ(ofYaml.validate().message(),
            "bnb_4bit_blocksize: expects a power of two from 64 to 4096, but "
            "got 96");
}

TEST(Options, HostileRecordedOptionsAreErrors) {
  EXPECT_FALSE(Options().applyRecorded("{").isOk());
  EXPECT_FALSE(Options().applyRecorded("[]").isOk());
  EXPECT_FALSE(Options().applyRecorded(R"({"lora_r": {}})").isOk());
  EXPECT_FALSE(Options().applyRecorded(R"({"max_length": [[1]]})").isOk());
}
