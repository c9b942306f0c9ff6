// SPDX-License-Identifier: MIT

// Writes the rows of ModuleTables, with labels in place of addresses.

#include "compiler/Codegen/EmitModule.h"

#include "compiler/Codegen/AssemblyText.h"
#include "compiler/Codegen/ModuleTables.h"

#include "llvm/ADT/DenseMap.h"

#include <fmt/format.h>

using namespace mlir;
using namespace qlora;

namespace {

class ModuleEmitter {
public:
  ModuleEmitter(ModuleTables tables, const CompiledKernels &compiled)
      : tables(std::move(tables)), compiled(compiled) {}

  void describe(ModuleOp module, const Target &target);
  std::string text();

private:
  std::string labelOf(const char *text) const;
  void addImages();
  std::string moduleRow() const;
  std::string addressTables() const;

  ModuleTables tables;
  const CompiledKernels &compiled;
  llvm::DenseMap<const char *, size_t> texts; ///< number of each string
  std::string strings, images, imageBytes;
};

} // namespace

/// Fills the fields of the header that depend on more than the program.
void ModuleEmitter::describe(ModuleOp module, const Target &target) {
  const auto textOf = [&](StringRef attribute) {
    auto text = module->getAttrOfType<StringAttr>(attribute);
    return tables.text(text ? text.getValue() : "{}");
  };
  tables.header.cpu_features = tables.text(target.cpuFeatures());
  tables.header.config_json = textOf("program.config");
  tables.header.plan_json = textOf("program.plan");
  tables.header.image_count = compiled.images.size();
  tables.header.cuda_version = compiled.cudaVersion;
}

/// Returns the label of a text of the tables; "0" for a null pointer.
std::string ModuleEmitter::labelOf(const char *text) const {
  return text ? fmt::format(".Ltext{}", texts.lookup(text)) : "0";
}

/// Adds the device images. The assembler inserts the bytes of their files.
void ModuleEmitter::addImages() {
  images = dataText(".Limages", nullptr, 0);
  for (auto [i, image] : llvm::enumerate(compiled.images)) {
    const std::string label = fmt::format(".Limage{}", i);
    imageBytes += fmt::format(".balign 16\n{0}: .incbin \"{1}\"\n{0}_end: "
                              ".byte 0\n",
                              label, image.file);
    qlora_image row = {};
    row.unit = image.unit;
    row.kind = image.kind;
    row.arch = image.arch;
    images += rowText(
        &row, sizeof(row),
        {{offsetof(qlora_image, bytes), label},
         {offsetof(qlora_image, size), fmt::format("{0}_end - {0}", label)}});
  }
}

/// Returns the label of a pipeline stage's qlora_module in the library.
static std::string stageLabel(uint32_t stage) {
  return fmt::format("qlora_stage_{}", stage);
}

std::string ModuleEmitter::moduleRow() const {
  const qlora_module &header = tables.header;
  const std::string label = stageLabel(header.stage);
  AddressLabels labels;
#define QLORA_TEXT(FIELD)                                                      \
  labels[offsetof(qlora_module, FIELD)] = labelOf(header.FIELD);
  QLORA_TEXT(producer)
  QLORA_TEXT(cpu_features)
  QLORA_TEXT(config_json)
  QLORA_TEXT(plan_json)
#undef QLORA_TEXT
#define QLORA_TABLE(FIELD, COUNT)                                              \
  labels[offsetof(qlora_module, FIELD)] = header.COUNT ? ".L" #FIELD : "0";
  QLORA_TABLE(arenas, arena_count)
  QLORA_TABLE(parameters, parameter_count)
  QLORA_TABLE(kernels, kernel_count)
  QLORA_TABLE(launches, launch_count)
  QLORA_TABLE(operands, operand_count)
  QLORA_TABLE(constants, constant_count)
  QLORA_TABLE(commands, command_count)
  QLORA_TABLE(entries, entry_count)
  QLORA_TABLE(bindings, binding_count)
  QLORA_TABLE(images, image_count)
#undef QLORA_TABLE
  if (header.stage + 1 < header.mesh.pp)
    labels[offsetof(qlora_module, next_stage)] = stageLabel(header.stage + 1);
  return fmt::format(".balign 16\n.globl {0}\n.hidden {0}\n{0}:\n{1}", label,
                     rowText(&header, sizeof(header), labels));
}

/// Returns the tables with names and functions.
std::string ModuleEmitter::addressTables() const {
  std::string text = addressText(
      ".Lparameters", tables.parameters, [&](const qlora_parameter &row) {
        return AddressLabels{
            {offsetof(qlora_parameter, name), labelOf(row.name)}};
      });
  text += addressText(".Lkernels", tables.kernels, [&](const auto &row) {
    const std::string &function =
        tables.functions[&row - tables.kernels.data()];
    return AddressLabels{
        {offsetof(qlora_kernel, name), labelOf(row.name)},
        {offsetof(qlora_kernel, function), function.empty() ? "0" : function},
        {offsetof(qlora_kernel, symbol), labelOf(row.symbol)}};
  });
  return text +
         addressText(".Llaunches", tables.launches, [&](const auto &row) {
           return AddressLabels{
               {offsetof(qlora_launch, label), labelOf(row.label)}};
         });
}

static constexpr const char *kQuery = R"(.text
.globl {0}
.type {0}, @function
{0}:
  cmpl ${1}, %edi
  jb .Lunknown
  leaq {2}(%rip), %rax
  ret
.Lunknown:
  xorl %eax, %eax
  ret
.size {0}, . - {0}
)";

std::string ModuleEmitter::text() {
  for (const std::string &text : tables.texts()) {
    const size_t number = texts.size();
    texts[text.c_str()] = number;
    strings += stringText(labelOf(text.c_str()), text);
  }
  addImages();
  std::string result;
  if (tables.header.stage == 0)
    result = fmt::format(fmt::runtime(kQuery), QLORA_MODULE_QUERY,
                         QLORA_ABI_VERSION, stageLabel(0));
  result += ".section .data.rel.ro, \"aw\"\n" + moduleRow() + addressTables() +
            images + ".section .rodata, \"a\"\n";
  result += dataText(".Larenas", tables.arenas) +
            dataText(".Loperands", tables.operands) +
            dataText(".Lconstants", tables.constants) +
            dataText(".Lcommands", tables.commands) +
            dataText(".Lentries", tables.entries) +
            dataText(".Lbindings", tables.bindings);
  return result + strings + imageBytes +
         ".section .note.GNU-stack, \"\", @progbits\n";
}

FailureOr<std::string> qlora::emitModule(ModuleOp module, const Target &target,
                                         const CompiledKernels &kernels) {
  FailureOr<ModuleTables> tables = ModuleTables::of(module, target.spelling());
  if (failed(tables))
    return failure();
  ModuleEmitter emitter(std::move(*tables), kernels);
  emitter.describe(module, target);
  return emitter.text();
}
