// SPDX-License-Identifier: MIT

// Scales values to coordinates and writes them as SVG.

#include "runtime/Watch/Chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace qlora {

/// Size of the chart, and the bounds of the plotted area.
static constexpr double kWidth = 360, kHeight = 200;
static constexpr double kLeft = 52, kRight = 340, kTop = 10, kBottom = 166;
static constexpr size_t kColumns = static_cast<size_t>(kRight - kLeft);
/// Number of line styles in chartStyle().
static constexpr size_t kStyles = 6;
/// Lines of up to this many points also mark each point: one point has no line.
static constexpr size_t kMarked = 40;
static constexpr double kGreatest = 1e300;

static bool isDrawable(const ChartPoint &point) {
  return std::abs(point.x) <= kGreatest && std::abs(point.y) <= kGreatest;
}

std::string escapeHtml(std::string_view text) {
  std::string escaped;
  for (const char letter : text)
    switch (letter) {
    case '&': escaped += "&amp;"; break;
    case '<': escaped += "&lt;"; break;
    case '>': escaped += "&gt;"; break;
    case '"': escaped += "&quot;"; break;
    case '\'': escaped += "&#39;"; break;
    default: escaped += letter;
    }
  return escaped;
}

std::vector<double> roundTicks(double low, double high) {
  // Treat ends that float64 hardly distinguishes as one value with a margin.
  const double least = std::max({std::abs(low), std::abs(high), 1e-290}) * 1e-9;
  if (high - low < least) {
    const double room = std::max(std::abs(high) * 0.1, 1e-280);
    low -= room;
    high += room;
  }
  const double rough = (high - low) / 5;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = power * 10;
  for (const double factor : {5.0, 2.0, 1.0})
    if (rough <= factor * power * (1 + 1e-9))
      step = factor * power;
  std::vector<double> ticks;
  const double first = std::floor(low / step + 1e-9);
  const double last = std::ceil(high / step - 1e-9);
  for (int i = 0; first + i <= last; ++i)
    ticks.push_back((first + i) * step);
  return ticks;
}

std::vector<ChartPoint> drawnPoints(const std::vector<ChartPoint> &points,
                                    size_t columns) {
  const size_t each = std::max<size_t>((points.size() + columns - 1) / columns,
                                       1);
  std::vector<ChartPoint> drawn;
  for (size_t begin = 0; begin < points.size(); begin += each) {
    const size_t end = std::min(begin + each, points.size());
    size_t least = end, greatest = end;
    bool hasGap = false;
    for (size_t i = begin; i < end; ++i) {
      if (!isDrawable(points[i])) {
        hasGap = true;
        continue;
      }
      if (least == end || points[i].y < points[least].y)
        least = i;
      if (greatest == end || points[i].y > points[greatest].y)
        greatest = i;
    }
    if (hasGap)
      drawn.push_back({points[begin].x,
                       std::numeric_limits<double>::quiet_NaN()});
    if (least == end)
      continue;
    drawn.push_back(points[std::min(least, greatest)]);
    if (least != greatest)
      drawn.push_back(points[std::max(least, greatest)]);
  }
  return drawn;
}

/// Formats a value for the axis, in few characters, such as 1.5e-4 or 200k.
static std::string tickText(double value) {
  const double size = std::abs(value);
  for (const auto &[unit, letter] :
       {std::pair(1e12, 'T'), {1e9, 'G'}, {1e6, 'M'}, {1e3, 'k'}})
    if (size >= unit && size < 1e15 && (size >= 1e4 || unit > 1e3))
      return fmt::format("{:.6g}{}", value / unit, letter);
  if (size == 0 || (size >= 1e-3 && size < 1e4))
    return fmt::format("{:.6g}", value);
  // Drop the exponent's plus sign and leading zero: 5e-5.
  std::string text = fmt::format("{:.3g}", value);
  if (const size_t e = text.find('e'); e != std::string::npos)
    text = fmt::format("{}e{}", text.substr(0, e),
                       std::stoi(text.substr(e + 1)));
  else // for example 0.00015
    text = fmt::format("{:.3g}e-4", value * 1e4);
  return text;
}

namespace {

/// The ticks of an axis, and the mapping of values to coordinates.
struct Axis {
  std::vector<double> ticks;
  double low, high; ///< values at the two ends
  double from, to;  ///< coordinates of the ends

  double place(double value) const {
    return from + (value - low) / (high - low) * (to - from);
  }
};

/// Minimum and maximum of the drawn values.
struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

} // namespace

/// Makes an axis from the first to the last tick.
static Axis wholeAxis(Range range, double from, double to) {
  std::vector<double> ticks = roundTicks(range.low, range.high);
  const double low = ticks.front(), high = ticks.back();
  return {std::move(ticks), low, high, from, to};
}

/// Makes an axis from minimum to maximum, so the line uses the full width.
static Axis tightAxis(Range range, double from, double to) {
  Axis axis = wholeAxis(range, from, to);
  std::vector<double> inside;
  for (const double tick : axis.ticks)
    if (tick >= range.low && tick <= range.high)
      inside.push_back(tick);
  if (inside.size() < 2) // almost a single value
    return axis;
  return {std::move(inside), range.low, range.high, from, to};
}

static std::string gridSvg(const Axis &x, const Axis &y,
                           const std::string &xName) {
  std::string svg;
  for (const double tick : y.ticks)
    svg += fmt::format("<path class=\"grid\" d=\"M{} {:.1f}H{}\"/>"
                       "<text x=\"{}\" y=\"{:.1f}\" class=\"end\">{}</text>",
                       kLeft, y.place(tick), kRight, kLeft - 5,
                       y.place(tick) + 4, tickText(tick));
  for (const double tick : x.ticks)
    svg += fmt::format("<path class=\"grid\" d=\"M{:.1f} {}V{}\"/>"
                       "<text x=\"{:.1f}\" y=\"{}\" class=\"middle\">{}</text>",
                       x.place(tick), kBottom, kBottom + 4, x.place(tick),
                       kBottom + 15, tickText(tick));
  return svg + fmt::format("<text x=\"{}\" y=\"{}\" class=\"middle\">{}</text>",
                           (kLeft + kRight) / 2, kHeight - 4,
                           escapeHtml(xName));
}

static std::string lineSvg(const std::vector<ChartPoint> &points, size_t style,
                           const Axis &x, const Axis &y) {
  std::string path, marks;
  bool isOpen = false;
  for (const ChartPoint &point : points) {
    if (!isDrawable(point)) {
      isOpen = false;
      continue;
    }
    path += fmt::format("{}{:.1f} {:.1f}", isOpen ? 'L' : 'M', x.place(point.x),
                        y.place(point.y));
    isOpen = true;
    if (points.size() <= kMarked)
      marks += fmt::format(
          "<circle class=\"mark s{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\">"
          "<title>{:.6g}: {:.6g}</title></circle>",
          style, x.place(point.x), y.place(point.y), point.x, point.y);
  }
  if (path.empty())
    return "";
  return fmt::format("<path class=\"line s{}\" d=\"{}\"/>", style, path) +
         marks;
}

static std::string legendHtml(const std::vector<ChartSeries> &series) {
  std::string html;
  for (size_t i = 0; series.size() > 1 && i < series.size(); ++i)
    html += fmt::format("<span><svg class=\"key\" viewBox=\"0 0 24 8\" "
                        "aria-hidden=\"true\"><path class=\"line s{}\" "
                        "d=\"M0 4H24\"/></svg>{}</span>",
                        i % kStyles, escapeHtml(series[i].name));
  return html.empty() ? "" : "<p class=\"legend\">" + html + "</p>";
}

std::string chartSvg(const Chart &chart) {
  Range xs, ys;
  std::vector<std::vector<ChartPoint>> lines;
  for (const ChartSeries &series : chart.series) {
    lines.push_back(drawnPoints(series.points, kColumns));
    for (const ChartPoint &point : lines.back())
      if (isDrawable(point)) {
        xs.add(point.x);
        ys.add(point.y);
      }
  }
  const std::string title = escapeHtml(chart.title);
  std::string html = "<figure><figcaption>" + title + "</figcaption>";
  if (xs.low > xs.high)
    return html + "<p class=\"none\">Nothing was logged.</p></figure>";
  if (chart.startsAtZero)
    ys.add(0);
  const Axis x = tightAxis(xs, kLeft, kRight);
  const Axis y = wholeAxis(ys, kBottom, kTop);
  html += fmt::format("<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\" "
                      "aria-label=\"{}\">",
                      kWidth, kHeight, title);
  html += gridSvg(x, y, chart.xName);
  for (size_t i = 0; i < lines.size(); ++i)
    html += lineSvg(lines[i], i % kStyles, x, y);
  return html + "</svg>" + legendHtml(chart.series) + "</figure>";
}

std::string_view chartStyle() {
  return R"(
:root{--s0:#0072b2;--s1:#d55e00;--s2:#007d5b;--s3:#a8487f;--s4:#8a6100;--s5:#555}
@media(prefers-color-scheme:dark){:root{--s0:#56b4e9;--s1:#ff8c42;--s2:#2ec99b;
--s3:#e6a3c6;--s4:#f0c14b;--s5:#bbb}}
figure{margin:0}figcaption{font-weight:600;margin-bottom:.3rem}
svg.chart{display:block;width:100%;height:auto}
svg text{font-size:11px;fill:currentColor;opacity:.75}
.end{text-anchor:end}.middle{text-anchor:middle}
.grid{stroke:currentColor;opacity:.16;fill:none}
.line{fill:none;stroke-width:1.6;stroke-linejoin:round}
.line.s0{stroke:var(--s0)}.line.s1{stroke:var(--s1);stroke-dasharray:6 3}
.line.s2{stroke:var(--s2);stroke-dasharray:2 2}
.line.s3{stroke:var(--s3);stroke-dasharray:8 3 2 3}
.line.s4{stroke:var(--s4);stroke-dasharray:12 4}
.line.s5{stroke:var(--s5);stroke-dasharray:1 3}
.mark.s0{fill:var(--s0)}.mark.s1{fill:var(--s1)}.mark.s2{fill:var(--s2)}
.mark.s3{fill:var(--s3)}.mark.s4{fill:var(--s4)}.mark.s5{fill:var(--s5)}
.legend{margin:.2rem 0 0;display:flex;flex-wrap:wrap;gap:.2rem 1rem;
font-size:.85rem;overflow-wrap:anywhere}
.key{width:24px;height:8px;margin-right:.35rem;vertical-align:middle}
.none{opacity:.75}
)";
}

} // namespace qlora
