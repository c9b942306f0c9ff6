// SPDX-License-Identifier: MIT

// The memory plan, printed as a table.

#include "runtime/Predict/MemoryPlan.h"

#include <gtest/gtest.h>

#include "tests/runtime/DemoTables.h"

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

TEST(MemoryPlan, PartsStandBelowTheirRowAndAreNotAdded) {
  PlanRow rows[] = {{"activations", 4096, 4096, ""},
                    {"decoded weights", 1024, 0, "", true, true},
                    {"adapters", 512, 512, ""}};
  EXPECT_EQ(planTable("memory", rows, true),
            "memory                           plan   measured\n"
            "  activations                 4.0 KiB    4.0 KiB\n"
            "    decoded weights           1.0 KiB\n"
            "  adapters                      512 B      512 B\n"
            "  total                       4.5 KiB    4.5 KiB\n");
}

TEST(MemoryPlan, SaysHowRanksWorkTogether) {
  DemoTables tables;
  const auto said = [&](int ranks) {
    return parallelText(tables.load().value(), ranks);
  };
  EXPECT_EQ(said(2), "data parallel, one shared base (64 B); 72 B of "
                     "gradients per step");
  tables.header.mesh.tp = 2;
  EXPECT_EQ(said(2),
            "tensor parallel over 2 ranks, slices of a base (64 B); 72 "
            "B of gradients per step");
  EXPECT_EQ(
      said(6),
      "data and tensor parallel over 2 ranks, slices of a base (64 B); "
      "72 B of gradients per step");
  tables.header.mesh.tp = 1;
  shareLines(tables);
  EXPECT_EQ(said(2),
            "context parallel over 2 ranks, one shared base (64 B); 72 "
            "B of gradients per step");
  tables.header.mesh.fsdp = 4;
  EXPECT_EQ(said(4),
            "data and context parallel over 2 ranks, a base in 4 pieces (64 "
            "B); 72 B of gradients per step");
  tables = DemoTables();
  tables.header.mesh.zero2 = 2;
  EXPECT_EQ(said(2),
            "data parallel, one shared base (64 B), trainable parameters in 2 "
            "pieces; 64 B of gradients per micro-batch");
}
