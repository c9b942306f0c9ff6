// SPDX-License-Identifier: MIT

// Runs the kernel of a row op: prints the kernel, compiles it into a train.so,
// loads this file, and calls the kernel on the test's memory.

#ifndef QLORA_TESTS_COMPILER_CODEGEN_KERNELHARNESS_H
#define QLORA_TESTS_COMPILER_CODEGEN_KERNELHARNESS_H

#include <gtest/gtest.h>

#include <dlfcn.h>

#include <cmath>
#include <random>

#include "compiler/Codegen/Codegen.h"
#include "dialects/Program/Program.h"
#include "dialects/Train/Train.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Parser/Parser.h"
#include "runtime/ABI/module.h"
#include "runtime/Kernels/Rows.h"
#include "tests/runtime/TemporaryFolder.h"

namespace qlora::test {

/// A kernel's buffer: its layout and its memory.
struct Buffer {
  qlora_dtype dtype = QLORA_DTYPE_F32;
  int64_t stride = 0;
  int64_t groups = 1;
  int64_t elements = 0;
  std::vector<uint8_t> memory = {};

  int64_t bytes() const {
    return dtype == QLORA_DTYPE_I8 ? 1 : dtype == QLORA_DTYPE_BF16 ? 2 : 4;
  }
  double at(int64_t i) const {
    if (dtype == QLORA_DTYPE_I32)
      return qlora_load_i32(memory.data(), i);
    if (dtype == QLORA_DTYPE_I8)
      return qlora_load_i8(memory.data(), i);
    return dtype == QLORA_DTYPE_BF16 ? qlora_load_bf16(memory.data(), i)
                                     : qlora_load_f32(memory.data(), i);
  }
  void set(int64_t i, double value) {
    if (dtype == QLORA_DTYPE_I32)
      qlora_store_i32(memory.data(), i, static_cast<int32_t>(value));
    else if (dtype == QLORA_DTYPE_I8)
      qlora_store_i8(memory.data(), i, static_cast<float>(value));
    else if (dtype == QLORA_DTYPE_BF16)
      qlora_store_bf16(memory.data(), i, static_cast<float>(value));
    else
      qlora_store_f32(memory.data(), i, static_cast<float>(value));
  }
  /// Returns the index of column c of kernel row r of a full operand.
  int64_t index(int64_t r, int64_t c, int64_t columns) const {
    return r / groups * stride + r % groups * columns + c;
  }
  /// Fills the buffer with random values that depend only on `seed`.
  void fill(unsigned seed) {
    memory.assign(elements * bytes(), 0);
    std::mt19937 generator(seed);
    std::uniform_real_distribution<double> uniform(-2.0, 2.0);
    for (int64_t i = 0; i < elements; ++i)
      set(i, uniform(generator));
  }
};

/// The kernel of one row op, or of its gradient.
class RowKernel {
public:
  /// Uses the first row op of the func.func in `function`. `buffers` are the
  /// kernel's arguments: operands, then (if `gradient`) the results' gradients,
  /// then one result per yielded row.
  RowKernel(const std::string &function, std::vector<Buffer> buffers,
            bool gradient = false, const std::string &march = "native");
  ~RowKernel() {
    if (library)
      dlclose(library);
  }

  int64_t getColumns() const { return columns; }
  Buffer &operator[](size_t i) { return buffers[i]; }
  qlora_step_block step = {};

  /// Runs rows [begin, end).
  void run(int64_t begin, int64_t end) {
    ASSERT_NE(kernel, nullptr);
    std::vector<void *> pointers;
    for (size_t i = 0; i < buffers.size(); ++i)
      pointers.push_back(buffers[i - (i < inPlaceFrom ? 0 : inPlaceBack)]
                             .memory.data());
    qlora_kernel_args args = {pointers.data(), nullptr, &step};
    kernel(&args, begin, end);
  }
  /// Runs all rows at once, then in ranges, which must give the same bytes.
  void runBothWays(int64_t rows) {
    std::vector<Buffer> before = buffers;
    run(0, rows);
    std::swap(before, buffers);
    for (int64_t begin = rows; begin > 0;) {
      int64_t end = begin;
      begin = std::max<int64_t>(0, begin - 3);
      run(begin, end);
    }
    for (size_t i = 0; i < buffers.size(); ++i)
      EXPECT_EQ(buffers[i].memory, before[i].memory) << "buffer " << i;
  }

  /// Makes each buffer i with i >= from share the memory of buffer i - back.
  void runInPlace(size_t from, size_t back) {
    inPlaceFrom = from;
    inPlaceBack = back;
  }

private:
  void build(model::RowOp op, bool gradient);
  void load(mlir::ModuleOp program);

  std::vector<Buffer> buffers;
  int64_t columns = 0;
  size_t inPlaceFrom = SIZE_MAX, inPlaceBack = 0;
  TemporaryFolder folder;
  std::string march;
  void *library = nullptr;
  qlora_kernel_function kernel = nullptr;
};

inline mlir::MLIRContext &context() {
  static mlir::DialectRegistry registry = [] {
    mlir::DialectRegistry result;
    result.insert<model::ModelDialect, train::TrainDialect,
                  program::ProgramDialect, mlir::func::FuncDialect,
                  mlir::arith::ArithDialect, mlir::math::MathDialect>();
    train::registerModelGradients(result);
    return result;
  }();
  static mlir::MLIRContext instance(registry);
  instance.loadAllAvailableDialects();
  return instance;
}

inline RowKernel::RowKernel(const std::string &function,
                            std::vector<Buffer> buffers_, bool gradient,
                            const std::string &march)
    : buffers(std::move(buffers_)), march(march) {
  for (size_t i = 0; i < buffers.size(); ++i)
    buffers[i].fill(i + 1);
  auto source =
      mlir::parseSourceString<mlir::ModuleOp>(function, &context());
  if (source)
    source->walk([&](model::RowOp op) { build(op, gradient); });
}

inline void RowKernel::build(model::RowOp op, bool gradient) {
  using namespace mlir;
  Location loc = op.getLoc();
  columns = op.getRowColumns();
  OpBuilder b(&context());
  OwningOpRef<ModuleOp> program = ModuleOp::create(loc);
  b.setInsertionPointToEnd(program->getBody());
  SmallVector<model::MapAttr> maps = op.getRowMaps();
  if (gradient)
    maps.append(op->getNumResults(),
                model::MapAttr::get(&context(), model::MapKind::Full, 1));
  SmallVector<int64_t> dtypes, strides, groups;
  for (const Buffer &buffer : buffers) {
    dtypes.push_back(buffer.dtype);
    strides.push_back(buffer.stride);
    groups.push_back(buffer.groups);
  }
  SmallVector<Attribute> mapAttrs(maps.begin(), maps.end());
  auto kernel = program::KernelOp::create(
      b, loc, b.getStringAttr("tested"), StringAttr(), StringAttr(),
      b.getI64IntegerAttr(columns), b.getArrayAttr(mapAttrs),
      b.getDenseI64ArrayAttr(dtypes), b.getDenseI64ArrayAttr(strides),
      b.getDenseI64ArrayAttr(groups));
  Block &body = kernel.getBody().emplaceBlock();
  Type number = b.getF32Type(), row = RankedTensorType::get({columns}, number);
  for (model::MapAttr map : maps)
    body.addArgument(map.getKind() == model::MapKind::Scalar ||
                             map.getKind() == model::MapKind::Global
                         ? number
                         : row,
                     loc);
  b.setInsertionPointToEnd(&body);
  ValueRange arguments = body.getArguments();
  SmallVector<Value> results;
  if (gradient) {
    unsigned operands = op->getNumOperands();
    SmallVector<Value> seeds(arguments.drop_front(operands));
    auto rows = train::buildRowGradient(
        op, b, arguments.take_front(operands), seeds);
    ASSERT_TRUE(succeeded(rows));
    for (Value value : *rows)
      if (value && isa<RankedTensorType>(value.getType()))
        results.push_back(value);
  } else {
    results = op.buildRow(b, arguments);
  }
  model::RowYieldOp::create(b, loc, results);
  load(*program);
}

inline void RowKernel::load(mlir::ModuleOp program) {
  std::string path = folder.path("tested.so");
  CodegenOptions options;
  options.useCache = false;
  options.march = march;
  ASSERT_TRUE(succeeded(emitTrainSo(program, options, path)));
  library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  auto query = reinterpret_cast<qlora_module_query_function>(
      dlsym(library, QLORA_MODULE_QUERY));
  ASSERT_NE(query, nullptr);
  const qlora_module *module = query(QLORA_ABI_VERSION);
  ASSERT_EQ(module->kernel_count, 1u);
  EXPECT_EQ(module->kernels[0].operand_count, buffers.size());
  kernel = module->kernels[0].function;
}

} // namespace qlora::test

#endif // QLORA_TESTS_COMPILER_CODEGEN_KERNELHARNESS_H
