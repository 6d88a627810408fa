#pragma once

#include <string>
#include <vector>

#include "charts/svg_chart.h"
#include "observe/metrics_reader.h"

namespace lockstep::report {

using Rows = std::vector<observe::MetricsRow>;

/// One field of metrics by step, as far as rows have it.
std::vector<charts::ChartPoint> points_of(const Rows& rows, const std::string& field);
/// The same for a drawing: finite values, the means of neighbours if there are more than can be seen.
std::vector<charts::ChartPoint> drawn_points(const Rows& rows, const std::string& field);

/// A line for a drawing, with marks at its points if these are few and `marked`.
charts::ChartLine curve(const std::string& name, const Rows& rows, const std::string& field,
                        bool marked = false);
/// Numbers of a drawing's axis of steps.
std::vector<double> step_ticks(const std::vector<const Rows*>& runs);

}  // namespace lockstep::report
