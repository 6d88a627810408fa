#pragma once

#include <string>

#include "observe/metrics_reader.h"
#include "observe/sinks/sink.h"

namespace lockstep::observe {

/// A line of metrics.jsonl with its newline: "step" first, then whom the record is about, then its metrics.
std::string record_line(const MetricsRecord& record);
/// What such a line says, but its time, which is not in it. Throws DataError if it does not say whom it is
/// about.
MetricsRecord record_of(const MetricsRow& row);

}  // namespace lockstep::observe
