// SPDX-License-Identifier: MIT

// `qlora export --to gguf-lora`: the adapter alone as a file for llama.cpp,
// which loads it together with its base.

#include <fmt/format.h>

#include <cstdio>

#include "runtime/Base/Amounts.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Checkpoint/Adapter.h"
#include "runtime/Gguf/GgufMix.h"
#include "tools/qlora/ExportFacts.h"
#include "tools/qlora/ExportFormats.h"
#include "tools/qlora/GgufExport.h"
#include "tools/qlora/GgufLora.h"
#include "tools/qlora/GgufVocabulary.h"
#include "tools/qlora/ScratchFolder.h"

namespace qlora {

/// Returns lora_alpha of adapter_config.json.
static StatusOr<double> alphaOf(const ExportJob &job) {
  QLORA_ASSIGN_OR_RETURN(const auto settings, adapterSettings(job.run));
  Options options;
  QLORA_RETURN_IF_ERROR(options.applySettings(settings));
  return options.number("lora_alpha");
}

static std::string typeOf(const ExportJob &job) {
  const std::string type = job.own.text("outtype");
  return type == "auto" ? "f32" : type;
}

/// Lets llama.cpp load the adapter with its base. A temporary file in `folder`
/// has the base's values in float32.
static StatusOr<ReaderResult> readWithBase(const ExportJob &job,
                                           const LossMeter &meter,
                                           const GgufLora &lora,
                                           const std::string &path,
                                           const std::string &folder) {
  QLORA_ASSIGN_OR_RETURN(const ScratchFolder scratch,
                         ScratchFolder::create("base", folder));
  QLORA_ASSIGN_OR_RETURN(const MergedModel base,
                         job.openBase(job.choices.front()));
  QLORA_ASSIGN_OR_RETURN(const GgufMix *exact, findGgufMix("f32"));
  QLORA_ASSIGN_OR_RETURN(GgufExport file, GgufExport::plan(job, base, *exact));
  QLORA_RETURN_IF_ERROR(checkFreeSpace(folder, file.bytes()));
  const std::string basePath = scratch.file("base.gguf");
  QLORA_ASSIGN_OR_RETURN(const GgufVocabulary vocabulary,
                         readVocabulary(job, file.vocabularySize(), ""));
  QLORA_RETURN_IF_ERROR(file.write(base, vocabulary.keys, basePath));
  QLORA_ASSIGN_OR_RETURN(const auto digests, lora.digests());
  QLORA_ASSIGN_OR_RETURN(const std::string flag,
                         writeDigests(meter, digests));
  return readBack(job, meter, "gguf-lora", path, {flag, "--base=" + basePath});
}

static void printPlan(const ExportJob &job, const GgufLora &lora,
                      const GgufExport &base, const std::string &path) {
  const uint64_t measured = job.own.boolean("verify") ? base.bytes() : 0;
  fmt::print("base     {}\n"
             "adapter  {}: {}\n"
             "write    {} to {}\n"
             "memory   {} for weights\n"
             "disk     {}\n",
             job.baseName, shownPath(job.run),
             formatCounted(lora.pairCount(), "adapted tensor"),
             formatBytes(lora.bytes()), shownPath(path),
             formatBytes(lora.peakBytes()),
             formatBytes(lora.bytes() + measured));
  std::fflush(stdout); // before the notes of other tools
}

/// Measures the losses, writes the folder, and lets llama.cpp read it.
static Status writeLora(const ExportJob &job, GgufLora &lora,
                        const std::string &fileName,
                        const std::vector<std::string> &notes) {
  ExportReport report = startReport(job, notes);
  QLORA_ASSIGN_OR_RETURN(std::optional<LossMeter> meter,
                         startMeter(job, report));
  QLORA_ASSIGN_OR_RETURN(
      StagedFolder folder,
      StagedFolder::create(job.output, job.own.boolean("overwrite")));
  const std::string path = folder.path() + "/" + fileName;
  QLORA_RETURN_IF_ERROR(lora.write(path, job.title()));
  Artefact artefact{"adapter", true, report.lossTrained, {},
                    "the reader's base is not quantized"};
  if (meter) {
    QLORA_ASSIGN_OR_RETURN(
        artefact.reader,
        readWithBase(job, *meter, lora, path, folder.path()));
    if (!notes.empty())
      artefact.reader.cause = notes.front();
  }
  report.artefacts.push_back(std::move(artefact));
  QLORA_RETURN_IF_ERROR(report.write(folder.path()));
  const std::string usage = fmt::format("`base.gguf` is the base as a GGUF "
                                        "file.\n\n```sh\nllama-cli -m "
                                        "base.gguf --lora {}\n```\n",
                                        fileName);
  QLORA_RETURN_IF_ERROR(
      replaceWholeFile(folder.path() + "/README.md",
                       modelCard(report, {job.title(), "gguf", usage})));
  QLORA_RETURN_IF_ERROR(folder.commit());
  printReport(job, report);
  return Status::ok();
}

Status exportGgufLora(const ExportJob &job) {
  QLORA_ASSIGN_OR_RETURN(const ExportFacts facts,
                         factsOfAdapter(job.run, job.config));
  std::vector<std::string> notes, ofConverter;
  QLORA_RETURN_IF_ERROR(checkFindings(job, ggufFindings(facts), notes));
  QLORA_RETURN_IF_ERROR(checkFindings(
      job, findingsFor(ExportTarget::kLlamaCpp, facts), ofConverter));
  QLORA_ASSIGN_OR_RETURN(const double alpha, alphaOf(job));
  const std::string type = typeOf(job);
  QLORA_ASSIGN_OR_RETURN(const GgufMix *mix, findGgufMix(type));
  QLORA_ASSIGN_OR_RETURN(const MergedModel model,
                         job.open(job.choices.front(), nullptr));
  QLORA_ASSIGN_OR_RETURN(const GgufMix *exact, findGgufMix("f32"));
  QLORA_ASSIGN_OR_RETURN(const GgufExport base,
                         GgufExport::plan(job, model, *exact));
  QLORA_ASSIGN_OR_RETURN(GgufLora lora,
                         GgufLora::plan(base.description(), *model.changes(),
                                        alpha, mix->type));
  const std::string fileName = job.title() + "-" + type + ".gguf";
  printPlan(job, lora, base, job.output + "/" + fileName);
  if (job.own.boolean("dry_run"))
    return Status::ok();
  return writeLora(job, lora, fileName, notes);
}

} // namespace qlora
