// SPDX-License-Identifier: MIT

// Line charts as inline SVG, for pages that need no network and no script: the
// report of a run (ReportPage.h), and several runs in one chart, over steps,
// tokens or time.
//
//   chartSvg({"Loss", "step", {{"train", {{10, 2.1}, {20, 1.7}}}}})
//     -> <figure><figcaption>Loss</figcaption><svg ...>...</svg></figure>
//
// A chart is 360 units wide, about a phone's width, so that its letters have
// their size there, and several stand in a row on a desktop. Colours are of
// Okabe and Ito (2008), told apart by colour-blind people too, and by dashes;
// chartStyle() has them for light and for dark pages.
//
// A point that is not finite, or beyond 1e300, breaks its line and is left out.
// Of more points than a chart has columns, the least and the greatest of each
// column are drawn, so that no spike is lost.

#ifndef QLORA_RUNTIME_WATCH_CHART_H
#define QLORA_RUNTIME_WATCH_CHART_H

#include <string>
#include <string_view>
#include <vector>

namespace qlora {

struct ChartPoint {
  double x, y;
};

struct ChartSeries {
  std::string name;
  std::vector<ChartPoint> points; ///< in the order of x
};

struct Chart {
  std::string title;
  std::string xName; ///< "step"
  std::vector<ChartSeries> series;
  /// For amounts, whose noise else fills the picture: memory, rates.
  bool startsAtZero = false;
};

/// Text as content or as an attribute's value.
std::string escapeHtml(std::string_view text);

/// Round numbers (1, 2 or 5 times a power of ten apart) that cover both ends
/// with some four to seven steps; both are finite, within 1e300, low <= high.
std::vector<double> roundTicks(double low, double high);

/// What is drawn of more points than `columns` can show: at most two a column,
/// in order, and what is not finite as one gap each.
std::vector<ChartPoint> drawnPoints(const std::vector<ChartPoint> &points,
                                    size_t columns);

std::string chartSvg(const Chart &chart);

/// CSS of all charts of a page.
std::string_view chartStyle();

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_CHART_H
