// SPDX-License-Identifier: MIT

// Options that need another option.

#include <gtest/gtest.h>

#include <fstream>

#include "runtime/Options/Options.h"

using namespace qlora;

TEST(Options, ChosenParametersAndJoinedRowsNeedOtherOptions) {
  const auto refusal = [](const std::string &yaml) {
    const std::string path = testing::TempDir() + "combined.yaml";
    std::ofstream(path) << yaml;
    Options options;
    EXPECT_TRUE(options.applyYaml(path).isOk());
    return options.validate().message();
  };
  const std::string chosen = "unfrozen_parameters: [model.norm]\n";
  EXPECT_EQ(refusal(chosen),
            "unfrozen_parameters needs --finetuning-type full; "
            "add that, or remove it");
  EXPECT_EQ(refusal(chosen + "finetuning_type: full\n"), "");
  EXPECT_EQ(refusal("packing_strategy: wrapped\n"),
            "packing_strategy wrapped needs --packing; add that, or remove it");
  EXPECT_EQ(refusal("packing_strategy: wrapped\npacking: true\n"), "");
  EXPECT_EQ(refusal("excess_length_strategy: split\nrl: dpo\n"),
            "excess_length_strategy split conflicts with rl dpo: an answer "
            "cannot be several rows; remove one");
}
