// SPDX-License-Identifier: MIT

// The plan as a table.

#include "runtime/Predict/MemoryPlan.h"

#include <gtest/gtest.h>

using namespace qlora;

TEST(MemoryPlan, PlanTableAddsUp) {
  PlanRow rows[] = {{"frozen base", 1024, 1024, "shared"},
                    {"adapters", 512, 0, ""}};
  EXPECT_EQ(planTable("memory", rows, false),
            "memory                           plan\n"
            "  frozen base                 1.0 KiB  shared\n"
            "  adapters                      512 B\n"
            "  total                       1.5 KiB\n");
}

TEST(MemoryPlan, WhatIsNotCountedComesAfterTheTotal) {
  PlanRow rows[] = {{"host (pinned)", 4096, 0, "", false},
                    {"adapters", 512, 0, ""}};
  EXPECT_EQ(planTable("memory", rows, false),
            "memory                           plan\n"
            "  adapters                      512 B\n"
            "  total                         512 B\n"
            "  host (pinned)               4.0 KiB\n");
}
