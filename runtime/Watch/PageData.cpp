// SPDX-License-Identifier: MIT

// Thins the lines of charts, and inserts the data into Page.html.

#include "runtime/Watch/PageData.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "runtime/Base/Amounts.h"
#include "runtime/Base/FillPage.h"
#include "runtime/Base/JsonText.h"

extern const char qloraRunPage[];
extern const char qloraRunScript[];

namespace qlora {

using nlohmann::json;

static bool isDrawable(const ChartPoint &point) {
  return std::ranges::all_of(
      point, [](double value) { return std::abs(value) <= 1e300; });
}

std::vector<ChartPoint> drawnPoints(std::span<const ChartPoint> points,
                                    size_t columns) {
  const size_t width = (points.size() + columns - 1) / columns;
  std::vector<ChartPoint> drawn;
  while (!points.empty()) {
    const auto column = points.first(std::min(width, points.size()));
    points = points.subspan(column.size());
    std::vector<ChartPoint> kept;
    std::ranges::copy_if(column, std::back_inserter(kept), isDrawable);
    if (kept.size() < column.size())
      drawn.push_back({column[0][0], std::numeric_limits<double>::quiet_NaN()});
    if (kept.empty())
      continue;
    const auto yOf = [](const ChartPoint &point) { return point[1]; };
    const auto least = std::ranges::min_element(kept, {}, yOf);
    const auto greatest = std::ranges::max_element(kept, {}, yOf);
    drawn.push_back(*std::min(least, greatest));
    if (least != greatest)
      drawn.push_back(*std::max(least, greatest));
  }
  return drawn;
}

static void to_json(json &data, const ChartLine &line) {
  constexpr size_t kColumns = 288; // pixels of the plotted area in Chart.js
  data = {{"name", line.name}, {"points", drawnPoints(line.points, kColumns)}};
}

static void to_json(json &data, const Chart &chart) {
  data = {{"title", chart.title},
          {"xName", chart.xName},
          {"lines", chart.lines},
          {"startsAtZero", chart.startsAtZero}};
}

static void to_json(json &data, const Table &table) {
  data = {{"title", table.title},
          {"rows", table.rows},
          {"head", table.head},
          {"note", table.note},
          {"kind", table.kind}};
}

std::string unreadableText(const std::string &name, size_t lines) {
  return lines == 0 ? ""
                    : fmt::format("Skipped lines of {} that cannot be read: "
                                  "{}.",
                                  name, formatCount(lines));
}

std::string pageHtml(const Page &page) {
  const json data = {{"title", page.title},
                     {"notes", page.notes},
                     {"charts", page.charts},
                     {"tables", page.tables}};
  return fillPage(qloraRunPage, dumpJson(data), qloraRunScript);
}

} // namespace qlora
