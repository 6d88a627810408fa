#pragma once

#include <string>
#include <vector>

#include "charts/svg_chart.h"
#include "report/run_sections.h"

namespace lockstep::report {

// What the sections of a page are made of.

using Cells = std::vector<std::string>;

/// A field of all runs; one that has none of it has no line. Names are those of the runs, or, of a single
/// run, `what`.
std::vector<charts::ChartLine> curves_of(const Runs& runs, const std::string& field, const std::string& what,
                                         bool marked);
/// Over the steps of all runs; "" without lines.
std::string step_chart(const Runs& runs, const std::string& title,
                       const std::vector<charts::ChartLine>& lines);
/// Charts beside each other, if there is room.
std::string beside(const std::string& charts);

/// "1.25 s", "3.42 ms"
std::string duration_text(double milliseconds);
/// A member of an object, as text; "" if there is none.
std::string text_of(const Json& object, const std::string& name);
/// The head of a table with a column for each run.
Cells head_of(const Runs& runs, const std::string& first);

}  // namespace lockstep::report
