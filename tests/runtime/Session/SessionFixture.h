// SPDX-License-Identifier: MIT

// A folder with a model, tokens and rows for runs of qlora-run with the
// programs of UnigramModule.c, and functions that read the resulting metrics
// and adapter.

#ifndef QLORA_TESTS_RUNTIME_SESSION_SESSIONFIXTURE_H
#define QLORA_TESTS_RUNTIME_SESSION_SESSIONFIXTURE_H

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "runtime/Base/Subprocess.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

inline std::string contents(const std::filesystem::path &path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

template <typename T>
inline SafetensorsItem item(const char *name, SafetensorsDtype dtype,
                            const std::vector<T> &values,
                            std::vector<int64_t> shape) {
  return {name,
          dtype,
          std::move(shape),
          {reinterpret_cast<const uint8_t *>(values.data()),
           values.size() * sizeof(T)}};
}

class SessionFixture : public testing::Test {
protected:
  void SetUp() override {
    // Hides real GPUs, because a run on the CPU would warn about an idle GPU.
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder / "model");
    std::vector<float> scores(16, 0.25f);
    save(
        "model/model.safetensors",
        {item("model.scores.weight", SafetensorsDtype::kF32, scores, {1, 16})});
    std::ofstream(folder / "model/tokenizer.json") << "{}";
    writeTokens();
    writeRows();
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  void save(const char *name, std::vector<SafetensorsItem> items) {
    Status status =
        writeSafetensors((folder / name).string(), std::move(items), {});
    ASSERT_TRUE(status.isOk()) << status.message();
  }
  void writeTokens() {
    std::vector<int32_t> ids;
    for (int i = 0; i < 8 * 2 * 8; ++i)
      ids.push_back(i * i * 7 % 13);
    save("tokens.safetensors",
         {item("input_ids", SafetensorsDtype::kI32, ids, {8, 2, 8}),
          item("labels", SafetensorsDtype::kI32, ids, {8, 2, 8})});
  }
  void writeRows() {
    std::vector<int32_t> ids;
    std::vector<int64_t> offsets = {0};
    for (int64_t size : {3, 8, 5, 2, 7}) {
      for (int64_t t = 0; t < size; ++t)
        ids.push_back(static_cast<int32_t>(size + t) % 13);
      offsets.push_back(static_cast<int64_t>(ids.size()));
    }
    int64_t tokens = offsets.back();
    save("rows.safetensors",
         {item("input_ids", SafetensorsDtype::kI32, ids, {tokens}),
          item("labels", SafetensorsDtype::kI32, ids, {tokens}),
          item("row_offsets", SafetensorsDtype::kI64, offsets, {6})});
  }

  std::vector<std::string> command(std::vector<std::string> flags) {
    std::vector<std::string> words = {QLORA_RUN, module, "--model",
                                      (folder / "model").string()};
    words.insert(words.end(), flags.begin(), flags.end());
    return words;
  }
  ProcessOutput run(std::vector<std::string> flags) {
    return std::move(runProgram(command(std::move(flags)))).value();
  }
  std::string at(const char *name) { return (folder / name).string(); }
  /// Trains on the token file into `out`; returns the metrics.
  std::vector<nlohmann::json> train(const char *out,
                                    std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--train-file", at("tokens.safetensors"),
                               "--output-dir", at(out), "--lr", "0.05"});
    ProcessOutput output = run(std::move(flags));
    EXPECT_EQ(output.exitCode, 0) << output.errors;
    return metrics(out);
  }
  std::vector<nlohmann::json> metrics(const char *out) {
    std::vector<nlohmann::json> lines;
    std::ifstream file(folder / out / "metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      lines.push_back(nlohmann::json::parse(line));
    return lines;
  }
  std::string adapter(const char *out) {
    return contents(folder / out / "adapter_model.safetensors");
  }

  std::string module = QLORA_UNIGRAM_MODULE;
  std::filesystem::path folder = std::filesystem::path(testing::TempDir()) /
                                 ("session" + std::to_string(getpid()));
};

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_SESSION_SESSIONFIXTURE_H
