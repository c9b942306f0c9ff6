// SPDX-License-Identifier: MIT

// `qlora export --to peft`: the adapter alone, with its tokenizer, as a folder
// that PEFT loads. Copies it from a run or from a checkpoint, which have other
// files too.

#include <fmt/format.h>

#include <filesystem>

#include "runtime/Base/Amounts.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Checkpoint/Adapter.h"
#include "tools/qlora/ExportFormats.h"

namespace qlora {

namespace fs = std::filesystem;

/// Copies a file if it exists; large files window by window.
static Status copyInto(const std::string &folder, const fs::path &from) {
  std::error_code error;
  if (!fs::exists(from, error))
    return Status::ok();
  fs::copy_file(from, fs::path(folder) / from.filename(), error);
  if (!error)
    return Status::ok();
  const bool isFull = error == std::errc::no_space_on_device;
  return Status::error(isFull ? StatusCode::kResourceExhausted
                              : StatusCode::kUnavailable,
                       "cannot copy '{}' into '{}': {}. Fix: -o DIR",
                       from.string(), folder, error.message());
}

Status exportPeft(const ExportJob &job) {
  // Checks that the adapter fits its base, and that all of it is finite.
  QLORA_ASSIGN_OR_RETURN(const MergedModel model,
                         job.open(job.choices.front(), nullptr));
  const fs::path run = job.run;
  std::error_code ignored;
  fmt::print("base     {}\nadapter  {}, {}\nwrite    {}\n", job.baseName,
             shownPath(job.run),
             formatBytes(fs::file_size(run / kAdapterWeights, ignored)),
             shownPath(job.output));
  if (job.own.boolean("dry_run"))
    return Status::ok();
  ExportReport report = startReport(job);
  QLORA_ASSIGN_OR_RETURN(std::optional<LossMeter> meter,
                         startMeter(job, report));
  QLORA_ASSIGN_OR_RETURN(
      StagedFolder folder,
      StagedFolder::create(job.output, job.own.boolean("overwrite")));
  for (const char *name : {kAdapterWeights, "adapter_config.json"})
    QLORA_RETURN_IF_ERROR(copyInto(folder.path(), run / name));
  for (const char *name : tokenizerFiles())
    QLORA_RETURN_IF_ERROR(copyInto(folder.path(), run / name));
  if (job.logFolder == job.run || fs::equivalent(job.logFolder, run, ignored))
    QLORA_RETURN_IF_ERROR(copyInto(folder.path(), run / "README.md"));
  Artefact artefact{"adapter", true, report.lossTrained, {},
                    "the reader's base is not quantized"};
  if (meter && job.base.empty()) {
    artefact.reader.notChecked = "the base is quantized in its files";
  } else if (meter) {
    QLORA_ASSIGN_OR_RETURN(artefact.reader,
                           readBack(job, *meter, "peft", folder.path(),
                                    {"--base=" + job.base}));
  }
  report.artefacts.push_back(std::move(artefact));
  QLORA_RETURN_IF_ERROR(report.write(folder.path()));
  QLORA_RETURN_IF_ERROR(folder.commit());
  printReport(job, report);
  return Status::ok();
}

} // namespace qlora
