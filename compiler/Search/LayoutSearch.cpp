// SPDX-License-Identifier: MIT

// Plans and predicts each mesh, chooses one, and prints the table.

#include "compiler/Search/LayoutSearch.h"

#include "compiler/PassMetadata.h"
#include "dialects/Model/Model.h"
#include "runtime/Base/Amounts.h"

#include <numeric>

using namespace mlir;

namespace qlora {

namespace {
struct Layout {
  ParallelMesh mesh;
  FoundBatch best;
  std::string refusal; ///< error of the mesh, which has no plan then
  std::string reason;  ///< last column of the table

  double rowSeconds() const { return best.plan.step.all / best.plan.stepRows; }
};
} // namespace

/// Layouts whose times differ by less than this factor, the error of the cost
/// model, count as equally fast. On two CPU ranks, measurements confirmed
/// larger predicted differences (bench/layouts.py).
static constexpr double kNoise = 1.005;

/// Plans one mesh. An error becomes the mesh's reason in the table. An error of
/// plain data parallelism affects all meshes, so it is reported.
static FailureOr<Layout> planLayout(ModuleOp model, PlanSettings &settings,
                                    StepPlanner plan,
                                    const ParallelMesh &mesh) {
  Layout layout;
  layout.mesh = mesh;
  if (Status status = setLayout(settings, mesh); !status.isOk()) {
    layout.refusal = status.message();
    return layout;
  }
  ScopedDiagnosticHandler errors(
      model.getContext(), [&](Diagnostic &diagnostic) {
        if (mesh.size() == 1 ||
            diagnostic.getSeverity() != DiagnosticSeverity::Error)
          return failure();
        layout.refusal = diagnostic.str();
        return success();
      });
  FailureOr<FoundBatch> found = findBatch(model.getLoc(), settings, plan);
  if (failed(found) && layout.refusal.empty())
    return failure();
  layout.best = found.value_or(FoundBatch());
  return layout;
}

/// Returns the layout with the smallest time per row; null if no layout fits.
static const Layout *fastestOf(ArrayRef<Layout> layouts) {
  const Layout *fastest = nullptr;
  for (const Layout &layout : layouts)
    if (layout.best.plan.fits &&
        (!fastest || layout.rowSeconds() < fastest->rowSeconds()))
      fastest = &layout;
  return fastest;
}

/// Returns the first, and so simplest, of the equally fast layouts. If no
/// layout fits, returns the layout with the smallest plan.
static const Layout &chosenOf(ArrayRef<Layout> layouts) {
  if (const Layout *fastest = fastestOf(layouts))
    return *llvm::find_if(layouts, [&](const Layout &layout) {
      return layout.best.plan.fits &&
             layout.rowSeconds() <= kNoise * fastest->rowSeconds();
    });
  // No plan fits. Plans above --memory-limit have hostBytes 0 and come first.
  const auto bytesOf = [](const Layout &layout) {
    return std::pair(layout.best.plan.hostBytes, layout.best.plan.bytes);
  };
  const Layout *smallest = nullptr;
  for (const Layout &layout : layouts)
    if (layout.refusal.empty() &&
        (!smallest || bytesOf(layout) < bytesOf(*smallest)))
      smallest = &layout;
  return *smallest;
}

/// Returns the table's name of a layout: "fsdp=2 x 4" on eight ranks.
static std::string titleOf(const ParallelMesh &mesh, int64_t ranks) {
  if (mesh.size() == 1)
    return "data parallel";
  return mesh.size() == ranks
             ? mesh.text()
             : fmt::format("{} x {}", mesh.text(), ranks / mesh.size());
}

static std::string reasonOf(const Layout &layout, const Layout &chosen,
                            const Layout *fastest,
                            const CompileOptions &options) {
  if (!layout.refusal.empty())
    return layout.refusal;
  const StepPlan &plan = layout.best.plan;
  const int64_t hostLimit = options.hostMemoryLimit;
  const bool exceedsHost = hostLimit > 0 && plan.hostBytes > hostLimit;
  if (!plan.fits)
    return fmt::format(
        "exceeds {} by {}{}", exceedsHost ? "host memory" : "the limit",
        formatBytes(exceedsHost ? plan.hostBytes - hostLimit
                                : plan.bytes - options.memoryLimit),
        &layout == &chosen ? "; the smallest layout" : "");
  if (&layout == &chosen)
    return &layout == fastest ? "chosen: the fastest that fits"
                              : "chosen: the simplest of equally fast layouts";
  if (layout.rowSeconds() <= kNoise * fastest->rowSeconds())
    return fmt::format("as fast, within {:.1f} %", 100 * (kNoise - 1));
  return fmt::format("{:.1f} % slower",
                     100 * (layout.rowSeconds() / chosen.rowSeconds() - 1));
}

static std::string tableOf(ArrayRef<Layout> layouts,
                           const PlanSettings &settings,
                           const DeviceProfile &device) {
  constexpr const char *kLine = "  {:<22} {:>5} {:>9} {:>9} {:>10} {:>7}  {}\n";
  const int64_t limit = settings.compile.memoryLimit;
  std::string text = fmt::format(
      "--parallel auto: {}, {}; times are predicted for {}\n",
      formatCounted(settings.ranks, "rank"),
      limit > 0 ? formatBytes(limit) + " each" : "without a memory limit",
      device.cpu == DeviceProfile().cpu ? "a CPU of two cores" : device.cpu);
  text += fmt::format(kLine, "layout", "batch", "plan", "ms/step", "exposed",
                      "", "");
  for (const Layout &layout : layouts) {
    const StepPlan &plan = layout.best.plan;
    const auto &[all, exposed] = plan.step;
    text += fmt::format(
        kLine, titleOf(layout.mesh, settings.ranks),
        layout.refusal.empty() ? fmt::format("{}", layout.best.batch) : "",
        layout.refusal.empty() ? formatBytes(plan.bytes) : "",
        plan.fits ? fmt::format("{:.2f}", 1e3 * all) : "",
        plan.fits ? fmt::format("{:.2f} ms", 1e3 * exposed) : "",
        plan.fits ? fmt::format("{:.1f} %", 100 * exposed / all) : "",
        layout.reason);
  }
  if (!device.gpu)
    text += "  plans count an unsharded base in every rank; the ranks of a "
            "machine share one copy\n";
  return text;
}

/// Records the table for reports.
static void recordLayouts(ModuleOp model, ArrayRef<Layout> layouts,
                          const Layout &chosen, int64_t ranks) {
  SmallVector<Attribute> rows;
  for (const Layout &layout : layouts) {
    const StepPlan &plan = layout.best.plan;
    MetadataBuilder facts(model.getContext());
    facts.add("layout", layout.mesh.text())
        .add("groups", ranks / layout.mesh.size())
        .add("chosen", &layout == &chosen)
        .add("fits", plan.fits)
        .add("reason", layout.reason);
    if (layout.refusal.empty())
      facts.add("batch", layout.best.batch).add("bytes", plan.bytes);
    if (plan.fits)
      facts.add("step_seconds", plan.step.all)
          .add("exposed_communication_seconds", plan.step.exposedCommunication);
    rows.push_back(facts.get());
  }
  recordDecision(model, kLayoutDecision,
                 ArrayAttr::get(model.getContext(), rows));
}

/// Returns the greatest common divisor of the layers' expert counts; 0 without
/// experts.
static int64_t expertsOf(ModuleOp model) {
  int64_t experts = 0;
  model.walk([&](model::GroupingOp op) {
    experts = std::gcd(experts, model::columnsOf(op.getGroupOffsets()) - 1);
  });
  return experts;
}

LogicalResult findLayout(ModuleOp model, PlanSettings &settings,
                         const DeviceProfile &device, StepPlanner plan,
                         NotePrinter print) {
  // Generation does not work with ep.
  const int64_t experts =
      settings.compile.generationRows > 0 ? 0 : expertsOf(model);
  std::vector<Layout> layouts;
  for (const ParallelMesh &mesh : ParallelMesh::candidates(
           settings.ranks, settings.compile.trained.all, experts)) {
    FailureOr<Layout> layout = planLayout(model, settings, plan, mesh);
    if (failed(layout))
      return failure();
    layouts.push_back(std::move(*layout));
  }
  const Layout *fastest = fastestOf(layouts);
  const Layout &chosen = chosenOf(layouts);
  for (Layout &layout : layouts)
    layout.reason = reasonOf(layout, chosen, fastest, settings.compile);
  for (const Status &status : {setLayout(settings, chosen.mesh),
                               setBatch(settings, chosen.best.batch)})
    if (!status.isOk())
      return emitError(model.getLoc(), status.message());
  print(tableOf(layouts, settings, device));
  if (!chosen.best.reason.empty())
    print(chosen.best.reason + "\n");
  recordLayouts(model, layouts, chosen, settings.ranks);
  return success();
}

LogicalResult findLayoutAndBatch(ModuleOp model, PlanSettings &settings,
                                 NotePrinter print) {
  const bool hasLayouts = settings.findsLayout && settings.ranks > 1;
  if (settings.findsLayout && !hasLayouts) {
    if (Status status = setLayout(settings, ParallelMesh()); !status.isOk())
      return emitError(model.getLoc(), status.message());
    print("--parallel auto: one rank, no layout; set the number of ranks with "
          "--ranks\n");
  }
  if (!hasLayouts && settings.batches.empty())
    return success();
  StatusOr<DeviceProfile> device = deviceProfileOrDefault(
      settings.compile.deviceProfile, settings.compile.target);
  Status status = device.status();
  if (status.isOk() && device->gpu)
    status = device->describeNetwork(settings.gpusPerNode, settings.network);
  if (!status.isOk())
    return emitError(model.getLoc(), status.message());
  const auto plan = [&](const PlanSettings &current) {
    return planStep(model, current, *device);
  };
  if (hasLayouts)
    return findLayout(model, settings, *device, plan, print);
  FailureOr<FoundBatch> found = findBatch(model.getLoc(), settings, plan);
  if (succeeded(found) && !found->reason.empty())
    print(found->reason + "\n");
  return found;
}

} // namespace qlora
