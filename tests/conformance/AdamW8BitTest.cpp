// SPDX-License-Identifier: MIT

// adamw_8bit: after each step, the optimizer states equal bitsandbytes' bit for
// bit on every target. A gradient that is not finite changes nothing.

#include <cstring>

#include "runtime/Weights/Safetensors.h"
#include "tests/conformance/KernelCase.h"

namespace qlora {
namespace {

constexpr qlora_dtype F32 = QLORA_DTYPE_F32;
constexpr qlora_dtype U8 = QLORA_DTYPE_U8;

KernelCase makeCase(int64_t rows, int64_t columns) {
  return {"adamw_8bit",
          {{"p", F32},
           {"state1", U8},
           {"state2", U8},
           {"absmax1", F32},
           {"absmax2", F32},
           {"gradient", F32},
           {"scale", F32}},
          {{"rows", rows},
           {"columns", columns},
           {"rate_scale", std::bit_cast<int64_t>(1.0)},
           {"undecayed", 0}}};
}

qlora_step_block stepOf(int64_t count) {
  qlora_step_block step = {};
  step.learning_rate = 1e-2f;
  step.beta1 = 0.9f;
  step.beta2 = 0.999f;
  step.epsilon = 1e-8f;
  step.weight_decay = 0.1f;
  step.bias_correction1 = float(1 - std::pow(0.9, double(count)));
  step.bias_correction2_sqrt =
      float(std::sqrt(1 - std::pow(0.999, double(count))));
  step.one_minus_beta1 = float(1 - 0.9);
  step.one_minus_beta2 = float(1 - 0.999);
  return step;
}

/// Returns row `step` of a tensor of the file.
std::vector<uint8_t> rowOf(const SafetensorsFile &file, const char *name,
                           int64_t step) {
  const SafetensorsTensor &tensor = **file.get(name);
  std::vector<uint8_t> row(tensor.byteCount() /
                           static_cast<uint64_t>(tensor.shape[0]));
  EXPECT_TRUE(
      file.read(tensor, uint64_t(step) * row.size(), row).isOk());
  return row;
}

void start(KernelCase &test) {
  for (const char *state : {"state1", "state2", "absmax1", "absmax2"})
    std::memset(test.data(state), 0, test.bytes(state));
  test.set("scale", 0, 1);
}

TEST(AdamW8Bit, HasTheStatesOfBitsandbytes) {
  auto file =
      SafetensorsFile::open(QLORA_TEST_INPUTS "/adamw_8bit.safetensors");
  ASSERT_TRUE(file.isOk()) << file.status().message();
  for (const std::string &row : allRowsToTest("adamw_8bit")) {
    KernelCase test = makeCase(3, 200);
    start(test);
    std::memcpy(test.data("p"), rowOf(*file, "start", 0).data(),
                test.bytes("p"));
    for (int64_t done = 0; done < 6; ++done) {
      SCOPED_TRACE(testing::Message() << row << ", step " << done + 1);
      std::memcpy(test.data("gradient"), rowOf(*file, "gradient", done).data(),
                  test.bytes("gradient"));
      const qlora_step_block step = stepOf(done + 1);
      expectOk(test.run(row, nullptr, &step));
      for (const char *state : {"state1", "state2", "absmax1", "absmax2"})
        ASSERT_EQ(std::memcmp(test.data(state),
                              rowOf(*file, state, done).data(),
                              test.bytes(state)),
                  0)
            << state;
      const std::vector<uint8_t> p = rowOf(*file, "p", done);
      for (int64_t i = 0; i < 600; ++i)
        ASSERT_NEAR(test.at("p", i), qlora_load_f32(p.data(), i), 1e-6) << i;
    }
  }
}

TEST(AdamW8Bit, HasOneResultOnAllTargets) {
  for (const int64_t elements : {1, 255, 256, 257, 4097}) {
    std::vector<uint8_t> first;
    for (const std::string &row : allRowsToTest("adamw_8bit")) {
      KernelCase test = makeCase(1, elements);
      start(test);
      test.fill("p", 1, elements, elements, 3);
      test.fill("gradient", 1, elements, elements, 4);
      for (int64_t count = 1; count < 4; ++count) {
        const qlora_step_block step = stepOf(count);
        expectOk(test.run(row, nullptr, &step));
      }
      std::vector<uint8_t> all;
      for (const char *name : {"p", "state1", "state2", "absmax1", "absmax2"})
        all.insert(all.end(), test.data(name),
                   test.data(name) + test.bytes(name));
      if (first.empty())
        first = all;
      EXPECT_EQ(all, first) << row << ", " << elements;
      test.set("scale", 0, std::nan(""));
      const qlora_step_block step = stepOf(4);
      expectOk(test.run(row, nullptr, &step));
      EXPECT_EQ(std::memcmp(test.data("p"), first.data(), test.bytes("p")), 0);
    }
  }
}

} // namespace
} // namespace qlora
