#pragma once

#include <span>
#include <string>
#include <string_view>

#include "observe/machine/subject.h"

namespace lockstep::observe {

/// What a field of metrics.jsonl is called elsewhere.
struct MetricName {
  std::string_view field;
  std::string_view grouped;     ///< in TensorBoard and MLflow: groups before the slash
  std::string_view prometheus;  ///< in base units
  double factor;                ///< from the field's unit to that
  std::string_view help;
};

/// All numbers of metrics.jsonl but "step".
std::span<const MetricName> metric_names();

/// "train/<field>" for one that the table does not have.
std::string grouped_name(std::string_view field);
/// Likewise, of a machine's figure: "gpu0/power_watts".
std::string grouped_name(const MachineSubject& subject, bool several_hosts, std::string_view field);

}  // namespace lockstep::observe
