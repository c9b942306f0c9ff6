// SPDX-License-Identifier: MIT

// A module with one frozen parameter. It is filled from a model folder, either
// in host memory or through a device.

#ifndef QLORA_TESTS_RUNTIME_CORE_ONEPARAMETER_H
#define QLORA_TESTS_RUNTIME_CORE_ONEPARAMETER_H

#include <algorithm>
#include <functional>

#include "runtime/Device/Device.h"
#include "runtime/Kernels/Math/Stored.h"
#include "runtime/Weights/Parameters.h"
#include "tests/runtime/DemoTables.h"

namespace qlora {

inline const std::string kGoldens =
    std::string(QLORA_TEST_INPUTS) + "/goldens/";
inline constexpr const char *kWeight = "model.layers.0.mlp.down_proj.weight";

#define EXPECT_HAS(text, part)                                                 \
  EXPECT_NE((text).find(part), std::string::npos) << "in: " << (text)

class OneParameter {
public:
  OneParameter(const char *name, std::vector<int64_t> shape,
               uint32_t quantization, qlora_dtype dtype,
               bool doubleQuant = true) {
    qlora_parameter &p = tables.parameters[0];
    tables.parameters.resize(1);
    p.name = name;
    p.rank = static_cast<uint32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), p.shape);
    p.quantization = quantization;
    p.dtype = dtype;
    const bool quantized = quantization != QLORA_QUANTIZATION_NONE;
    p.block = quantized ? 64 : 0;
    p.format = quantized ? QLORA_DTYPE_NF4 : 0;
    p.double_quant = quantized && doubleQuant;
    int64_t elements = 1;
    for (int64_t extent : shape)
      elements *= extent;
    p.bytes = static_cast<uint64_t>(
        dtype == QLORA_DTYPE_NF4
            ? StoredLayout::of(QLORA_DTYPE_NF4, elements, 64, doubleQuant).bytes
            : elements * (dtype == QLORA_DTYPE_F32 ? 4 : 2));
    p.file_dtype = QLORA_DTYPE_BF16;
    tables.arenas[kDemoFrozen].bytes = p.bytes;
    tables.operands.clear();
    tables.commands.clear();
    tables.entries.clear();
  }

  Status fill(const std::string &folder) {
    auto module = tables.load();
    QLORA_RETURN_IF_ERROR(module.status());
    QLORA_ASSIGN_OR_RETURN(ModelFiles model, ModelFiles::open(folder));
    if (afterOpen)
      afterOpen();
    words.assign((tables.parameters[0].bytes + 3) / 4, 0xa5a5a5a5);
    HostArena arena(bytes());
    return fillFrozen(*module, {&model, nullptr, 0}, {},
                      QLORA_ARENA_FROZEN, arena);
  }

  /// Fills the arena through a device with `scratch` bytes of scratch memory,
  /// and returns the device's remarks in `remarks`.
  Status fillOnDevice(const std::string &folder, uint64_t scratch,
                      std::vector<std::string> *remarks = nullptr) {
    tables.arenas[kDemoActivation].bytes = scratch;
    auto module = tables.load();
    QLORA_RETURN_IF_ERROR(module.status());
    QLORA_ASSIGN_OR_RETURN(ModelFiles model, ModelFiles::open(folder));
    if (afterOpen)
      afterOpen();
    QLORA_ASSIGN_OR_RETURN(auto device, createDevice("cpu", {}));
    QLORA_RETURN_IF_ERROR(device->load(*module, nullptr));
    const uint64_t size = tables.parameters[0].bytes;
    DeviceArena arena(*device, kDemoFrozen, size, loadingScratch(*module));
    QLORA_RETURN_IF_ERROR(fillFrozen(*module, {&model, nullptr, 0}, {},
                                     QLORA_ARENA_FROZEN, arena));
    if (remarks)
      *remarks = device->remarks();
    words.assign((size + 3) / 4, 0xa5a5a5a5);
    return device->read(kDemoFrozen, 0, bytes());
  }

  std::span<uint8_t> bytes() {
    return {reinterpret_cast<uint8_t *>(words.data()),
            tables.parameters[0].bytes};
  }

  DemoTables tables;
  std::vector<uint32_t> words;
  /// Function that fill() calls after opening the model and before reading
  /// weights.
  std::function<void()> afterOpen;
};

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_CORE_ONEPARAMETER_H
