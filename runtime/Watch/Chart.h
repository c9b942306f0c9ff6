// SPDX-License-Identifier: MIT

// Line charts as inline SVG, for pages without network and scripts: the report
// of a run (ReportPage.h), and comparisons over steps, tokens or time.
//
//   chartSvg({"Loss", "step", {{"train", {{10, 2.1}, {20, 1.7}}}}})
//     -> <figure><figcaption>Loss</figcaption><svg ...>...</svg></figure>
//
// A chart is 360 units wide, about the width of a phone, so text has its
// nominal size there, and several charts fit in a row on a desktop. The colours
// are from Okabe and Ito (2008), which colour-blind people can distinguish; the
// dashes differ too. chartStyle() has colours for light and dark pages.
//
// A point that is not finite, or beyond 1e300, is left out and breaks the line.
// If there are more points than pixel columns, the minimum and maximum of each
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
  std::vector<ChartPoint> points; ///< sorted by x
};

struct Chart {
  std::string title;
  std::string xName; ///< name of the x axis: "step"
  std::vector<ChartSeries> series;
  /// For memory, rates and so on, whose noise would otherwise fill the chart.
  bool startsAtZero = false;
};

/// Escapes text for use as content or as the value of an attribute.
std::string escapeHtml(std::string_view text);

/// Returns about four to seven ticks, 1, 2 or 5 times a power of ten apart,
/// that cover low to high. Both must be finite, within 1e300, low <= high.
std::vector<double> roundTicks(double low, double high);

/// Reduces the points to at most two per column, in order, and one gap per
/// column with points that are not finite.
std::vector<ChartPoint> drawnPoints(const std::vector<ChartPoint> &points,
                                    size_t columns);

std::string chartSvg(const Chart &chart);

/// Returns the CSS for all charts of a page.
std::string_view chartStyle();

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_CHART_H
