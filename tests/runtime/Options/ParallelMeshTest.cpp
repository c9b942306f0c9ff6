// SPDX-License-Identifier: MIT

#include "runtime/Options/ParallelMesh.h"

#include <gtest/gtest.h>

#include <tuple>

using namespace qlora;

TEST(ParallelMesh, ReadsAxes) {
  for (const char *none : {"", "none", "fsdp=1"}) {
    const auto mesh = ParallelMesh::parse(none);
    ASSERT_TRUE(mesh.isOk()) << mesh.status().message();
    EXPECT_EQ(mesh->fsdp, 1) << none;
  }
  const auto mesh = ParallelMesh::parse("fsdp=4");
  ASSERT_TRUE(mesh.isOk()) << mesh.status().message();
  EXPECT_EQ(mesh->fsdp, 4);
  EXPECT_EQ(mesh->zero1, 1);
  const auto both = ParallelMesh::parse("zero1=2,fsdp=2");
  ASSERT_TRUE(both.isOk()) << both.status().message();
  EXPECT_EQ(both->fsdp, 2);
  EXPECT_EQ(both->zero1, 2);
  const auto tensor = ParallelMesh::parse("tp=65535,fsdp=1");
  ASSERT_TRUE(tensor.isOk()) << tensor.status().message();
  EXPECT_EQ(tensor->tp, 65535);
  EXPECT_EQ(tensor->size(), 65535);
  EXPECT_EQ(tensor->rowRanks(), 65535);
}

/// An fsdp group is either inside a context-parallel group or consists of
/// several such groups.
TEST(ParallelMesh, LinesArePartsOfOrHaveThoseWithPieces) {
  for (const auto &[text, size, rows] :
       {std::tuple("cp=4", 4, 4), {"fsdp=8,cp=4", 8, 4}, {"zero1=2,cp=4", 4, 4},
        {"ep=4", 4, 1}, {"fsdp=8,cp=2,ep=4", 8, 2},
        {"fsdp=3,zero1=3,cp=3", 3, 3}, {"fsdp=2,zero2=2,cp=4", 4, 4}}) {
    const auto mesh = ParallelMesh::parse(text);
    ASSERT_TRUE(mesh.isOk()) << mesh.status().message();
    EXPECT_EQ(mesh->size(), size) << text;
    EXPECT_EQ(mesh->rowRanks(), rows) << text;
    EXPECT_EQ(mesh->text(), text);
  }
  EXPECT_EQ(ParallelMesh::parse("fsdp=4,cp=6").status().message(),
            "--parallel: fsdp=4 and cp=6 do not fit: one number must divide "
            "the other; change one");
  EXPECT_EQ(ParallelMesh::parse("cp=2,zero1=3").status().message(),
            "--parallel: zero1=3 and cp=2 do not fit: one number must divide "
            "the other; change one");
  EXPECT_EQ(ParallelMesh::parse("cp=2,zero2=3").status().message(),
            "--parallel: zero2=3 and cp=2 do not fit: one number must divide "
            "the other; change one");
}

/// fsdp groups have ranks of one stage only, so stages may shard differently.
TEST(ParallelMesh, StagesHavePiecesOfTheirOwn) {
  for (const auto &[text, size] : {std::pair("pp=4", 4),
                                   {"fsdp=3,pp=2", 6},
                                   {"fsdp=2,zero1=2,pp=2", 4},
                                   {"tp=2,pp=3", 6},
                                   {"zero2=2,pp=2", 4},
                                   {"zero2=3,tp=2", 6},
                                   {"zero2=2,tp=3,pp=2", 12},
                                   {"pp=2,ep=4", 8},
                                   {"fsdp=3,zero1=3,tp=2,pp=2", 12},
                                   {"pp=2,cp=2", 4},
                                   {"fsdp=2,tp=2,pp=2,cp=4", 16}}) {
    const auto mesh = ParallelMesh::parse(text);
    ASSERT_TRUE(mesh.isOk()) << mesh.status().message();
    EXPECT_EQ(mesh->size(), size) << text;
    EXPECT_EQ(mesh->rowRanks(), mesh->pp * mesh->tp * mesh->cp) << text;
    EXPECT_EQ(mesh->text(), text);
  }
}

TEST(ParallelMesh, SaysWhatIsWrong) {
  const auto refusal = [](std::string_view text) {
    return ParallelMesh::parse(text).status().message();
  };
  EXPECT_EQ(refusal("sdp=4"), "--parallel: 'sdp' is not an axis; choose from: "
                              "fsdp, zero1, zero2, tp, pp, cp, ep");
  EXPECT_EQ(refusal("tp=2,ep=2"),
            "--parallel: tp=2 does not work with ep=2 yet; remove one");
  EXPECT_EQ(refusal("ep=4,zero2=6"),
            "--parallel: zero2=6 and ep=4 do not fit: one number must divide "
            "the other; change one");
  EXPECT_EQ(refusal("fsdp=2,zero1=4"),
            "--parallel: fsdp=2 and zero1=4 shard over the same ranks; give "
            "both the same number");
  EXPECT_EQ(refusal("zero2=2,fsdp=4"),
            "--parallel: fsdp=4 and zero2=2 shard over the same ranks; give "
            "both the same number");
  EXPECT_EQ(refusal("zero1=2,zero2=2"),
            "--parallel: zero2=2 includes zero1; remove zero1");
  EXPECT_EQ(refusal("dp=2"), "--parallel: dp has no size, as all remaining "
                             "ranks are data-parallel; set --gpus instead");
  EXPECT_EQ(refusal("fsdp=2,fsdp=2"),
            "--parallel gives fsdp twice; remove one");
  for (const char *text :
       {"fsdp", "fsdp=", "fsdp=0", "fsdp=-2", "fsdp=2x",
        "fsdp=99999999999999999999", "tp=65536", "fsdp=2,", ",", "="})
    EXPECT_NE(refusal(text).find("is not AXIS=RANKS"), std::string::npos)
        << text << ": " << refusal(text);
}

TEST(ParallelMesh, ListsWhatRanksCanHave) {
  const auto texts = [](int64_t ranks, bool trainsModel = false,
                        int64_t experts = 0) {
    std::vector<std::string> texts;
    for (const ParallelMesh &mesh :
         ParallelMesh::candidates(ranks, trainsModel, experts)) {
      texts.push_back(mesh.text());
      const auto read = ParallelMesh::parse(mesh.text());
      EXPECT_TRUE(read.isOk()) << read.status().message();
      EXPECT_EQ(read->text(), mesh.text());
      EXPECT_EQ(ranks % mesh.size(), 0) << mesh.text();
    }
    return texts;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(texts(1), Texts({"none"}));
  EXPECT_EQ(texts(3),
            Texts({"none", "fsdp=3", "zero1=3", "fsdp=3,zero1=3"}));
  EXPECT_EQ(texts(4), Texts({"none", "fsdp=2", "fsdp=4", "zero1=2", "zero1=4",
                             "fsdp=2,zero1=2", "fsdp=4,zero1=4"}));
  EXPECT_EQ(texts(3, true),
            Texts({"none", "fsdp=3", "zero1=3", "fsdp=3,zero1=3", "zero2=3",
                   "fsdp=3,zero2=3"}));
  EXPECT_EQ(texts(2, false, 6),
            Texts({"none", "fsdp=2", "zero1=2", "fsdp=2,zero1=2", "ep=2",
                   "fsdp=2,ep=2"}));
  EXPECT_EQ(texts(2, false, 5), texts(2));
  EXPECT_EQ(texts(1024).size(), 31u);
  EXPECT_EQ(texts(1024, false, 128).size(), 31u + 14u);
}
