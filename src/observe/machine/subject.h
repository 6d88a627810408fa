#pragma once

#include <optional>
#include <string>
#include <vector>

#include "observe/metrics_reader.h"

namespace lockstep::observe {

/// Whom a record of machine figures is about: a host, a process of the run, or the GPU, or MIG slice, of one.
struct MachineSubject {
  enum class Kind { host, process, gpu };

  Kind kind = Kind::host;
  std::string host;
  int rank = 0;              ///< of a process; of a GPU: that uses it
  int gpu = 0;               ///< as nvidia-smi counts
  std::optional<int> slice;  ///< likewise, of the GPU's MIG devices
  std::string uuid, model;   ///< of a GPU
  bool operator==(const MachineSubject&) const = default;
};

inline constexpr const char* kKindField = "kind";  ///< of lines of metrics.jsonl that say whom they are about
inline constexpr const char* kMachineKind = "machine";  ///< its value in those of machines

/// Fields of metrics.jsonl that say whom a line is about, in their order.
std::vector<std::pair<std::string, MetricValue>> fields_of(const MachineSubject& subject);
/// Nothing for lines that are of steps and evaluations. Throws DataError if a field is missing.
std::optional<MachineSubject> subject_of(const MetricsRow& row);
/// Whether it is a field that says whom a line is about.
bool is_subject_field(std::string_view name);

/// The group of its figures in TensorBoard and MLflow: "machine", "rank3", "gpu0", "gpu0.slice1"; with the
/// host's name, if there are several: "host1.machine", "host1.gpu0".
std::string group_of(const MachineSubject& subject, bool several_hosts);

}  // namespace lockstep::observe
