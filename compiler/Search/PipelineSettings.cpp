// SPDX-License-Identifier: MIT

// Sets and checks the settings of pipeline stages.

#include "compiler/Search/PlanSettings.h"

#include "runtime/Options/ObjectiveOptions.h"

namespace qlora {

/// Refuses options that need all rows of a micro-batch at once.
static Status checkChunks(const Options &o) {
  if (o.text("rl") == "kto")
    return Status::invalid(
        "--parallel pp splits a micro-batch into chunks, but --rl kto compares "
        "all of its rows; use --num-micro-batches 1, or another --rl");
  if (lossesOf(o).has("sft"))
    return Status::invalid(
        "--parallel pp splits a micro-batch into chunks, but the loss sft is a "
        "mean over all of its tokens; use --num-micro-batches 1, or {}",
        o.text("rl") == "cpo" ? "--cpo-alpha 0" : "another --loss-type");
  if (o.text("llm_int8_activations") == "int8" &&
      o.number("llm_int8_threshold") > 0)
    return Status::invalid(
        "--parallel pp splits a micro-batch into chunks, but "
        "--llm-int8-threshold looks for large columns in all of its rows; use "
        "--num-micro-batches 1, or --llm-int8-threshold 0");
  return Status::ok();
}

/// Refuses pipeline options without a pipeline, and conflicts with a pipeline.
static Status checkPipeline(const Options &o, const CompileOptions &c) {
  if (c.mesh.pp == 1) {
    const std::string_view said =
        o.integer("num_micro_batches") > 1 ? "num_micro_batches"
        : c.unroll.allForwardsFirst        ? "pipeline_schedule"
        : c.unroll.parts > 1 ? "num_virtual_stages_per_pipeline_rank"
                             : "";
    return said.empty()
               ? Status::ok()
               : Status::invalid(
                     "{} needs a pipeline; add --parallel pp=N, or remove it",
                     o.spelling(said));
  }
  if (o.text("step_packing") == "true")
    return Status::invalid(
        "--step-packing true joins the rows of a micro-batch, but --parallel "
        "pp splits them into chunks; remove one");
  if (o.boolean("auto_find_batch_size"))
    return Status::invalid(
        "--auto-find-batch-size does not work with --parallel pp yet; set "
        "--per-device-train-batch-size");
  if (c.unroll.parts > 1 && c.pipeline.deviceMap != "balanced")
    return Status::invalid("--device-map places layers on GPUs, but {} assigns "
                           "each GPU several stages; remove one",
                           o.spelling("num_virtual_stages_per_pipeline_rank"));
  return Status::ok();
}

Status fillChunks(const Options &o, CompileOptions &c) {
  // Chunks per stage: the pipeline is then idle for at most a fifth of a step.
  constexpr int64_t kForEachStage = 4;
  const int64_t asked = o.integer("num_micro_batches");
  c.unroll.allForwardsFirst = o.text("pipeline_schedule") == "gpipe";
  c.unroll.parts = o.integer("num_virtual_stages_per_pipeline_rank");
  c.unroll.chunks = 1;
  QLORA_RETURN_IF_ERROR(checkPipeline(o, c));
  if (c.mesh.pp == 1)
    return Status::ok();
  if (asked > 0 && c.batch % asked != 0)
    return Status::invalid(
        "{} {} does not divide the {} rows of a micro-batch; use a "
        "--per-device-train-batch-size that is a multiple of it",
        o.spelling("num_micro_batches"), asked, c.batch);
  const int64_t unit = c.unroll.parts > 1 ? c.mesh.pp : 1;
  c.unroll.chunks =
      asked > 0 ? asked : std::min(c.batch, kForEachStage * c.mesh.pp);
  while (asked == 0 && c.unroll.chunks > 0 &&
         (c.batch % c.unroll.chunks != 0 || c.unroll.chunks % unit != 0))
    --c.unroll.chunks;
  const std::string parts = o.spelling("num_virtual_stages_per_pipeline_rank");
  if (c.unroll.chunks == 0)
    return Status::invalid(
        "{} {} needs a number of chunks that is a multiple of the {} stages, "
        "but a micro-batch has {} rows; use a --per-device-train-batch-size "
        "that is a multiple of {}",
        parts, c.unroll.parts, c.mesh.pp, c.batch, c.mesh.pp);
  if (c.unroll.chunks % unit != 0)
    return Status::invalid(
        "{} {} needs a number of chunks that is a multiple of the {} stages, "
        "but {} is {}; use a multiple",
        parts, c.unroll.parts, c.mesh.pp, o.spelling("num_micro_batches"),
        asked);
  return c.unroll.chunks > 1 ? checkChunks(o) : Status::ok();
}

Status checkStageSpeeds(const CompileOptions &c, int64_t stages) {
  if (c.pipeline.speeds.empty())
    return Status::ok();
  if (std::ssize(c.pipeline.speeds) != stages)
    return Status::invalid(
        "--stage-speeds: expects one number for each stage; there {} {}",
        stages == 1 ? "is" : "are", stages);
  if (c.pipeline.deviceMap != "balanced")
    return Status::invalid("--stage-speeds balances layers, but --device-map "
                           "places them; remove one");
  return Status::ok();
}

} // namespace qlora
