// SPDX-License-Identifier: MIT

// A checkpoint has the log's state, so that a resumed run continues the log.

#include <gtest/gtest.h>

#include "runtime/Watch/StepLog.h"

using namespace qlora;
using nlohmann::ordered_json;

TEST(StepLog, GoesOnFromPairsOfEarlierCheckpoints) {
  const ordered_json pairs = {{"count", 4.0},
                              {"sums", {1.0, 2.0, 3.0, 4.0, 5.0}}};
  const ordered_json preferences = {{"count", 4.0},
                                    {"sums", {1.0, 2.0, 3.0, 4.0, 5.0}}};
  EXPECT_EQ(withPreferences({{"pairs", pairs}})["preferences"], preferences);
  for (const ordered_json &own :
       {ordered_json{{"pairs", nullptr}}, ordered_json{{"steps", 2}},
        ordered_json{{"preferences", preferences}}})
    EXPECT_EQ(withPreferences(own), own);
}
