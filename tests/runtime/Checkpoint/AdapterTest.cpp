// SPDX-License-Identifier: MIT

// Adapter folders: their files, their state after a full disk, and rejected
// configurations.

#include "runtime/Checkpoint/Adapter.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Checkpoint/EndToken.h"

#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "runtime/Weights/Parameters.h"
#include "runtime/Weights/Safetensors.h"
#include "tests/runtime/Faults.h"

using namespace qlora;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

class Adapter : public testing::Test {
protected:
  void SetUp() override {
    folder =
        fs::path(testing::TempDir()) / ("adapter" + std::to_string(getpid()));
    fs::remove_all(folder);
    fs::create_directories(folder / "model");
    std::ofstream(folder / "model/tokenizer.json") << "{}";
    ASSERT_TRUE(options.applyRecorded(module.table().config_json).isOk());
    set("model_name_or_path", (folder / "model").string());
  }
  void TearDown() override { fs::remove_all(folder); }

  void set(const char *name, const std::string &text) {
    OptionSetting setting[] = {{findOption(optionTable(), name), text, name}};
    Status status = options.applySettings(setting);
    ASSERT_TRUE(status.isOk()) << status.message();
  }
  Status write() {
    auto adapter =
        PreparedAdapter::prepare(module, options, (folder / "out").string());
    return adapter.isOk() ? adapter->write(trained) : adapter.status();
  }
  /// Returns the error for a configuration in which these keys are changed;
  /// empty if none.
  std::string check(const nlohmann::ordered_json &changes) {
    auto config = adapterConfig(module, options);
    config.update(changes);
    fs::create_directories(folder / "start");
    std::ofstream(folder / "start/adapter_config.json") << dumpJson(config);
    const std::string start = (folder / "start").string();
    const uint8_t bytes[4] = {};
    std::vector<SafetensorsItem> items;
    for (const qlora_parameter *parameter : trainedParameters(module))
      items.push_back({trainedName(module, *parameter),
                       SafetensorsDtype::kF32, {1}, {bytes, 4}});
    EXPECT_TRUE(
        writeSafetensors(start + "/adapter_model.safetensors", items, {})
            .isOk());
    std::string message = checkAdapterConfig(start, module, options).message();
    size_t at = message.find(start);
    return at == message.npos ? message : message.erase(at, start.size());
  }

  LoadedModule module =
      std::move(LoadedModule::open(QLORA_UNIGRAM_MODULE)).value();
  Options options;
  uint8_t value = 0;
  const NextBytes trained = [this](std::span<uint8_t> out) {
    std::ranges::fill(out, value);
    return Status::ok();
  };
  fs::path folder;
};

} // namespace

static std::string bytesOf(const fs::path &path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST_F(Adapter, NamesAnotherEndToken) {
  std::ofstream(folder / "model/tokenizer.json")
      << R"({"added_tokens": [{"id": 7, "content": "<end>"}]})";
  std::ofstream(folder / "model/tokenizer_config.json")
      << R"({"eos_token": {"content": "</s>"}, "model_max_length": 9})";
  std::ofstream(folder / "model/generation_config.json")
      << R"({"eos_token_id": 2})";
  set("eos_token", "<end>");
  ASSERT_TRUE(write().isOk());
  EXPECT_EQ(jsonObjectIn(folder / "out/tokenizer_config.json"),
            nlohmann::ordered_json::parse(
                R"({"eos_token": "<end>", "model_max_length": 9})"));
  // An adapter has no configuration of generation, and a model has one.
  EXPECT_FALSE(fs::exists(folder / "out/generation_config.json"));
  ASSERT_TRUE(
      writeEndToken("<end>", folder / "model", AtomicFile::Flush::kNo).isOk());
  EXPECT_EQ(jsonObjectIn(folder / "model/generation_config.json"),
            nlohmann::ordered_json::parse(R"({"eos_token_id": [7, 2]})"));
}

TEST_F(Adapter, TheNamedChatTemplateIsItsTokenizers) {
  const fs::path written = folder / "out/chat_template.jinja";
  std::ofstream(folder / "model/chat_template.jinja") << "the model's";
  set("chat_template", "qwen3-training");
  ASSERT_TRUE(write().isOk());
  EXPECT_EQ(bytesOf(written), "the model's");
  std::ofstream(folder / "mine") << "mine";
  set("chat_template", (folder / "mine").string());
  ASSERT_TRUE(write().isOk());
  EXPECT_EQ(bytesOf(written), "mine");
  set("chat_template", "llama3");
  ASSERT_TRUE(write().isOk());
  EXPECT_NE(bytesOf(written).find("<|start_header_id|>"), std::string::npos);
  set("chat_template", (folder / "none").string());
  EXPECT_NE(write().message().find("none"), std::string::npos);
}

TEST_F(Adapter, HasPeftsFilesNamesAndShapes) {
  Status status = write();
  ASSERT_TRUE(status.isOk()) << status.message();
  auto file = SafetensorsFile::open(
      (folder / "out/adapter_model.safetensors").string());
  ASSERT_TRUE(file.isOk());
  ASSERT_EQ(file->tensors().size(), 2u);
  auto *b = file->find("base_model.model.model.scores.lora_B.weight");
  ASSERT_TRUE(b);
  EXPECT_EQ(b->shape, (std::vector<int64_t>{16, 1}));
  EXPECT_EQ(file->metadata().at("format"), "pt");
  EXPECT_TRUE(fs::exists(folder / "out/tokenizer.json"));
  EXPECT_FALSE(fs::exists(folder / "out/.staging"));
  json config = json::parse(bytesOf(folder / "out/adapter_config.json"));
  EXPECT_EQ(config["base_model_name_or_path"], (folder / "model").string());
  EXPECT_EQ(config["target_modules"], json({"scores"}));
  EXPECT_EQ(dumpJson(config["lora_alpha"]), "1");
  EXPECT_EQ(config["init_lora_weights"], true);
  EXPECT_EQ(config["modules_to_save"], nullptr);
}

TEST_F(Adapter, TargetsAreSpelledForEveryReader) {
  Options all;
  ASSERT_TRUE(
      all.applyRecorded(R"({"lora_target_modules": "all-linear"})").isOk());
  EXPECT_EQ(adapterConfig(module, all)["target_modules"], json({"scores"}));
  Options regex;
  ASSERT_TRUE(
      regex.applyRecorded(R"({"lora_target_modules": ".*scores"})").isOk());
  EXPECT_EQ(adapterConfig(module, regex)["target_modules"],
            json({"model.scores"}));
}

TEST_F(Adapter, SaysWhichModulesWereLeftOut) {
  const json none = adapterConfig(module, Options());
  Options some;
  ASSERT_TRUE(some.applyRecorded(R"({"exclude_modules": ["head"],
      "layers_to_transform": [0, 3], "layers_pattern": ["h"]})")
                  .isOk());
  const json config = adapterConfig(module, some);
  for (const auto &[key, value] :
       {std::pair("exclude_modules", json({"head"})),
        std::pair("layers_to_transform", json({0, 3})),
        std::pair("layers_pattern", json({"h"}))}) {
    EXPECT_EQ(none[key], nullptr) << key;
    EXPECT_EQ(config[key], value);
    EXPECT_EQ(check({{key, value}}), "");
  }
}

TEST_F(Adapter, SaysWhichRowsItHas) {
  EXPECT_EQ(adapterConfig(module, options)["trainable_token_indices"], nullptr);
  EXPECT_EQ(check({{"trainable_token_indices", json::array({5})}}),
            "'/adapter_config.json': trainable_token_indices is [5], but this "
            "program was compiled for []. Fix: compile with "
            "--trainable-token-indices 5");
  // PEFT also writes trainable_token_indices as {module name: indices}.
  EXPECT_EQ(check({{"trainable_token_indices",
                    {{"embed_tokens", json::array({5})}}}}),
            "'/adapter_config.json': trainable_token_indices is [5], but this "
            "program was compiled for []. Fix: compile with "
            "--trainable-token-indices 5");
  Options some;
  ASSERT_TRUE(
      some.applyRecorded(R"({"trainable_token_indices": [17, 5]})").isOk());
  EXPECT_EQ(adapterConfig(module, some)["trainable_token_indices"],
            json({17, 5}));
}

TEST_F(Adapter, SaysWhichWayTheWeightsAre) {
  Options inOut;
  ASSERT_TRUE(inOut.applyRecorded(R"({"adapts_in_out": true})").isOk());
  EXPECT_EQ(adapterConfig(module, inOut)["fan_in_fan_out"], true);
  Options asked;
  ASSERT_TRUE(asked.applyRecorded(R"({"fan_in_fan_out": true})").isOk());
  EXPECT_EQ(adapterConfig(module, asked)["fan_in_fan_out"], false);
}

TEST_F(Adapter, APlainLoraHasTwiceTheRankAndTheSameScale) {
  Options residual;
  ASSERT_TRUE(residual.applyRecorded(R"({"init_lora_weights": "pissa",
      "lora_r": 4, "lora_alpha": 8, "lora_rank_pattern": {"q_proj": 2},
      "lora_alpha_pattern": {"q_proj": 3}})")
                  .isOk());
  const json trained = adapterConfig(module, residual);
  EXPECT_EQ(trained["init_lora_weights"], "pissa");
  EXPECT_EQ(trained["r"], 4);
  const json plain = adapterConfig(module, residual, AdapterForm::kPlain);
  EXPECT_EQ(plain["init_lora_weights"], true);
  EXPECT_EQ(plain["r"], 8);
  EXPECT_EQ(plain["lora_alpha"], 16);
  EXPECT_EQ(plain["rank_pattern"], json({{"q_proj", 4}}));
  EXPECT_EQ(plain["alpha_pattern"], json({{"q_proj", 6}}));
  Options rslora;
  ASSERT_TRUE(rslora.applyRecorded(R"({"init_lora_weights": "pissa",
      "lora_r": 4, "lora_alpha": 8, "use_rslora": true})")
                  .isOk());
  EXPECT_NEAR(adapterConfig(module, rslora, AdapterForm::kPlain)["lora_alpha"]
                  .get<double>(),
              8 * std::sqrt(2.0), 1e-12);
  EXPECT_EQ(adapterConfig(module, options, AdapterForm::kPlain),
            adapterConfig(module, options));
}

TEST_F(Adapter, PatternsKeepTheirOrder) {
  const std::string path = "layers.0.self_attn.q_proj";
  options = Options();
  ASSERT_TRUE(options.applyRecorded(R"({"lora_r": 1, "lora_alpha": 1,
      "lora_rank_pattern": {"q_proj": 2, "layers.0.self_attn.q_proj": 6},
      "lora_alpha_pattern": {"v_proj": 2, "k_proj": 6}})")
                  .isOk());
  const auto config = adapterConfig(module, options);
  EXPECT_EQ(config["rank_pattern"].begin().key(), "q_proj");
  EXPECT_EQ(config["alpha_pattern"].begin().key(), "v_proj");
  // Patterns in PEFT's sorted order are equivalent. A path that precedes a
  // shorter name changes which pattern matches.
  EXPECT_EQ(check({{"alpha_pattern", {{"k_proj", 6}, {"v_proj", 2}}}}), "");
  using Pattern = nlohmann::ordered_json;
  EXPECT_EQ(check({{"rank_pattern", Pattern{{"q_proj", 2}, {path, 6}}}}), "");
  EXPECT_NE(check({{"rank_pattern", Pattern{{path, 6}, {"q_proj", 2}}}}), "");
}

TEST_F(Adapter, OtherTargetsAreRefused) {
  fs::create_directories(folder / "other");
  std::ofstream(folder / "other/adapter_config.json")
      << R"({"peft_type": "LORA", "r": 1, "lora_alpha": 1,
             "target_modules": ["q_proj", "v_proj"]})";
  const float values[4] = {};
  const std::string name = "base_model.model.q_proj.lora_A.weight";
  ASSERT_TRUE(writeSafetensors(
                  (folder / "other/adapter_model.safetensors").string(),
                  {{name, SafetensorsDtype::kF32, {1, 4},
                    {reinterpret_cast<const uint8_t *>(values), 16}}},
                  {})
                  .isOk());
  const std::string message =
      checkAdapterConfig((folder / "other").string(), module, options)
          .message();
  EXPECT_NE(message.find("'" + name + "' is not a trainable parameter of "
                         "train.so. The adapter's target_modules are "
                         "[\"q_proj\",\"v_proj\"], and this program was "
                         "compiled for [\"scores\"]. Fix: compile with "
                         "--lora-target-modules q_proj,v_proj"),
            std::string::npos)
      << message;
}

TEST_F(Adapter, AnAdapterOfAnotherBaseIsRefused) {
  EXPECT_EQ(check({{"init_lora_weights", "pissa"}}),
            "'/adapter_config.json': init_lora_weights is \"pissa\", but this "
            "program was compiled for \"true\". Fix: compile with "
            "--init-lora-weights 'pissa'");
  EXPECT_EQ(check({{"init_lora_weights", "gaussian"}}), "");
}

/// On failure, the earlier adapter stays or the error names the new folder.
TEST_F(Adapter, FaultsLeaveAWholeAdapter) {
  const fs::path out = folder / "out", earlier = folder / "earlier";
  const auto weightsIn = [](const fs::path &where) {
    return bytesOf(where / "adapter_model.safetensors");
  };
  ASSERT_TRUE(write().isOk());
  fs::rename(out, earlier);
  value = 1;
  ASSERT_TRUE(write().isOk());
  const std::string trainedWeights = weightsIn(out);
  using How = FaultPlan::How;
  for (const auto &[error, how] : {std::pair{ENOSPC, How::kOnce},
                                   {EIO, How::kOnce},
                                   {ENOSPC, How::kFull}}) {
    FaultSweep sweep(
        {.calls = kChanges, .error = error, .how = how, .below = out.string()});
    while (sweep.next()) {
      fs::remove_all(out);
      fs::copy(earlier, out);
      const std::string said = sweep.run([&] { return write(); }).message();
      const std::string where = sweep.call() + ": " + said;
      const fs::path staging = out / ".staging";
      const bool isStaged =
          said.find("the adapter is in '" + staging.string()) != said.npos;
      const bool isInPlace =
          said.empty() || said.find("the adapter is in '") != said.npos;
      EXPECT_EQ(weightsIn(isStaged ? staging : out),
                isInPlace ? trainedWeights : weightsIn(earlier))
          << where;
      EXPECT_TRUE(said.empty() || said.find(out.string()) != said.npos)
          << where;
      EXPECT_TRUE(isStaged || !fs::exists(staging) || how == How::kOnce)
          << where;
    }
    EXPECT_GE(sweep.failures(), 10);
  }
}

TEST_F(Adapter, IsWrittenIntoTheSpaceThatWasReserved) {
  const fs::path weights = "adapter_model.safetensors";
  struct stat before {
  }, after{};
  fs::create_directories(folder / "out");
  {
    auto prepared = PreparedAdapter::prepare(module, options, folder / "out");
    ASSERT_TRUE(prepared.isOk()) << prepared.status().message();
    for (const auto &entry : fs::directory_iterator(folder / "out/.staging"))
      if (entry.path().string().find("safetensors.part.") != std::string::npos)
        stat(entry.path().c_str(), &before);
    ASSERT_NE(before.st_ino, 0u);
    EXPECT_FALSE(fs::exists(folder / "out" / weights));
    value = 1;
    // From here on only the weights are written, so the model may be missing.
    fs::remove_all(folder / "model");
    ASSERT_TRUE(prepared->write(trained).isOk());
  }
  ASSERT_EQ(stat((folder / "out" / weights).c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
  EXPECT_EQ(before.st_size, after.st_size);
  const std::string prepared = bytesOf(folder / "out" / weights);
  fs::create_directories(folder / "model");
  ASSERT_TRUE(write().isOk());
  EXPECT_EQ(bytesOf(folder / "out" / weights), prepared);
}

TEST_F(Adapter, NothingIsLeftOfOneThatGetsNoValues) {
  {
    auto prepared = PreparedAdapter::prepare(module, options, folder / "out");
    ASSERT_TRUE(prepared.isOk()) << prepared.status().message();
    EXPECT_TRUE(fs::exists(folder / "out/.staging"));
  }
  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST_F(Adapter, IsWrittenWhereItsFolderWasRemovedMeanwhile) {
  fs::create_directories(folder / "out");
  auto prepared = PreparedAdapter::prepare(module, options, folder / "out");
  ASSERT_TRUE(prepared.isOk()) << prepared.status().message();
  fs::remove_all(folder / "out");
  ASSERT_TRUE(prepared->write(trained).isOk());
  EXPECT_TRUE(fs::exists(folder / "out/adapter_model.safetensors"));
}

TEST_F(Adapter, ReplacesTheTokenizerOfAnother) {
  fs::create_directories(folder / "out");
  std::ofstream(folder / "out/vocab.json") << "of another model";
  std::ofstream(folder / "out/notes.txt") << "mine";
  ASSERT_TRUE(write().isOk());
  EXPECT_FALSE(fs::exists(folder / "out/vocab.json"));
  EXPECT_TRUE(fs::exists(folder / "out/notes.txt"));
}

TEST_F(Adapter, StaysWholeWhereItCannotBePutInPlace) {
  ASSERT_TRUE(write().isOk());
  const std::string untrained =
      bytesOf(folder / "out/adapter_model.safetensors");
  value = 1;
  const fs::path out = folder / "out", staging = out / ".staging";
  // Renaming the adapter's first or last file fails, even if the staging folder
  // was removed before.
  for (const char *name : {"adapter_config.json", "tokenizer.json"})
    for (const bool isRemoved : {false, true}) {
      fs::remove_all(out);
      fs::create_directories(out);
      std::ofstream(out / "vocab.json") << "an earlier one's";
      {
        auto prepared = PreparedAdapter::prepare(module, options, out);
        ASSERT_TRUE(prepared.isOk()) << prepared.status().message();
        EXPECT_FALSE(holdsAdapter(staging));
        if (isRemoved)
          fs::remove_all(staging);
        fs::create_directories(out / name);
        EXPECT_EQ(prepared->write(trained).message(),
                  "cannot write '" + (out / name).string() +
                      "': Is a directory; the adapter is in '" +
                      staging.string() + "'");
      }
      EXPECT_TRUE(holdsAdapter(staging));
      const std::string kept = bytesOf(staging / "adapter_model.safetensors");
      EXPECT_EQ(kept.size(), untrained.size());
      EXPECT_NE(kept, untrained);
      EXPECT_NE(bytesOf(staging / "adapter_config.json"), "");
      EXPECT_EQ(bytesOf(staging / "tokenizer.json"), "{}");
      EXPECT_EQ(bytesOf(out / "vocab.json"), "an earlier one's");
    }
}

TEST_F(Adapter, SaysWhatItCouldNotRemove) {
  fs::create_directories(folder / "out/vocab.json/full");
  EXPECT_EQ(write().message(),
            "the adapter is in '" + (folder / "out").string() +
                "', but 'vocab.json' of an earlier adapter cannot be removed: "
                "Directory not empty. Fix: remove it");
  EXPECT_TRUE(holdsAdapter(folder / "out"));
  EXPECT_FALSE(fs::exists(folder / "out/.staging"));
}

TEST_F(Adapter, AFileInTheWayIsAnError) {
  std::ofstream(folder / "out") << "a file";
  EXPECT_FALSE(write().isOk());
  EXPECT_EQ(bytesOf(folder / "out"), "a file");
}

TEST_F(Adapter, OurOwnConfigurationCanContinue) {
  EXPECT_EQ(check(json::object()), "");
  EXPECT_EQ(check({{"lora_alpha", 1.0},
                   {"fan_in_fan_out", true},
                   {"loftq_config", json::object()},
                   {"megatron_core", "megatron.core"},
                   {"use_dora", false}}),
            "");
}

TEST_F(Adapter, ContradictionsAreRefused) {
  EXPECT_EQ(check({{"r", 4}}),
            "'/adapter_config.json': r is 4, but this program was compiled for "
            "1. Fix: compile with --lora-r 4");
  EXPECT_EQ(check({{"use_dora", true}}),
            "'/adapter_config.json': use_dora is true, but this program was "
            "compiled for false. Fix: compile with --use-dora true");
  EXPECT_NE(check({{"use_bdlora", true}}), "");
  EXPECT_EQ(check({{"rank_pattern", {{"q", 2}}}}),
            "'/adapter_config.json': rank_pattern is {\"q\":2}, but this "
            "program was compiled for {}. Fix: compile with "
            "--lora-rank-pattern '{\"q\":2}'");
  EXPECT_EQ(check({{"peft_type", "IA3"}}),
            "'/adapter_config.json': peft_type is \"IA3\"; only LORA is "
            "supported");
  EXPECT_NE(check({{"bias", "all"}}), "");
  EXPECT_NE(check({{"lora_bias", true}}), "");
  EXPECT_NE(check({{"r", "four"}}), "");
  EXPECT_FALSE(
      checkAdapterConfig((folder / "none").string(), module, options).isOk());
}

TEST_F(Adapter, AConfigurationGivesOptions) {
  std::ofstream(folder / "adapter_config.json") << R"({
      "base_model_name_or_path": "Qwen/Qwen3-0.6B", "r": 4,
      "target_modules": ["q_proj", "v_proj"], "exclude_modules": null,
      "layers_to_transform": 3, "rank_pattern": {"b": 2, "a": 1},
      "trainable_token_indices": {"embed_tokens": [5, 2]},
      "init_lora_weights": "pissa"})";
  auto settings = adapterSettings(folder.string());
  ASSERT_TRUE(settings.isOk()) << settings.status().message();
  Options shape;
  const Status status = shape.applySettings(*settings);
  ASSERT_TRUE(status.isOk()) << status.message();
  EXPECT_TRUE(shape.text("model_name_or_path").ends_with("/Qwen/Qwen3-0.6B"));
  const auto text = [&](const char *name) {
    return dumpJson(shape.value(name));
  };
  EXPECT_EQ(text("lora_r"), "4");
  EXPECT_EQ(text("lora_alpha"), "8.0");
  EXPECT_EQ(text("bias"), "\"none\"");
  EXPECT_EQ(text("lora_target_modules"), R"(["q_proj","v_proj"])");
  EXPECT_FALSE(shape.isGiven("exclude_modules"));
  EXPECT_EQ(text("layers_to_transform"), "[3]");
  EXPECT_EQ(text("lora_rank_pattern"), R"({"b":2,"a":1})");
  EXPECT_EQ(text("trainable_token_indices"), "[5,2]");
  EXPECT_EQ(text("init_lora_weights"), "\"pissa\"");
  EXPECT_TRUE(checkAdapterOptions(folder.string(), shape).isOk());
  EXPECT_FALSE(adapterSettings((folder / "model").string()).isOk());
}
