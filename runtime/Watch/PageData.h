// SPDX-License-Identifier: MIT

// Charts and tables of pages about runs. C++ writes them as JSON into Page.html
// (Base/FillPage.h), and the page's scripts draw them; the fields have the same
// names there. A page is one file that needs no network, for phones and
// desktops, light and dark.

#ifndef QLORA_RUNTIME_WATCH_PAGEDATA_H
#define QLORA_RUNTIME_WATCH_PAGEDATA_H

#include <array>
#include <span>
#include <string>
#include <vector>

namespace qlora {

using ChartPoint = std::array<double, 2>; ///< x and y

/// Reduces the points to at most two per column of adjacent points, so that no
/// spike is lost: the minimum and the maximum. A column with a point that is
/// not finite, or beyond 1e300, also has a gap: a point whose y is NaN.
std::vector<ChartPoint> drawnPoints(std::span<const ChartPoint> points,
                                    size_t columns);

struct ChartLine {
  std::string name;
  std::vector<ChartPoint> points; ///< sorted by x; pageHtml() draws fewer
};

struct Chart {
  std::string title, xName; ///< xName: name of the x axis, such as "step"
  std::vector<ChartLine> lines;
  /// For memory, rates and so on, whose noise would otherwise fill the chart.
  bool startsAtZero = false;
};

using TextRow = std::vector<std::string>;

/// A table without rows and note is not shown.
struct Table {
  std::string title;
  std::vector<TextRow> rows;
  TextRow head = {}; ///< titles; without that of the first column, it is names
  std::string note = {}, kind = {}; ///< kind: class in the style sheet
};

struct Page {
  std::string title;
  std::vector<std::string> notes; ///< empty ones are not shown
  std::vector<Chart> charts;
  std::vector<Table> tables;
};

/// Returns a sentence about the unreadable `lines` of file `name`; "" for 0.
std::string unreadableText(const std::string &name, size_t lines);

std::string pageHtml(const Page &page);

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_PAGEDATA_H
