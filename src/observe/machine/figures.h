#pragma once

#include <span>
#include <string_view>

#include "observe/machine/subject.h"

namespace lockstep::observe {

/// How a figure is summed up in the final report.
enum class FigureKind {
  level,     ///< mean, max
  share,     ///< of a whole of 1, or 100 for percent: also percentiles
  rate,      ///< per second: mean, max, and what came together
  counter,   ///< grows: the last value, and by how much it grew
  constant,  ///< the last value
};

/// A figure of machines.
struct MachineFigure {
  MachineSubject::Kind subject;
  std::string_view field;  ///< in metrics.jsonl; behind the group in TensorBoard and MLflow
  FigureKind kind;
  std::string_view prometheus;  ///< in base units, or, of GPUs, as dcgm-exporter has it; empty: not there
  double factor;                ///< from the field's unit to that
  std::string_view help;
};

/// All of them.
std::span<const MachineFigure> machine_figures();
/// Null for one that the table does not have.
const MachineFigure* find_machine_figure(MachineSubject::Kind subject, std::string_view field);

}  // namespace lockstep::observe
