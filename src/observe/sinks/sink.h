#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "observe/histogram.h"
#include "observe/machine/subject.h"
#include "observe/metrics_reader.h"

namespace lockstep::observe {

inline constexpr const char* kMetricsFile = "metrics.jsonl";  ///< in the folder of a run
inline constexpr const char* kTextMetric = "text";            ///< what the model wrote after a step

/// A name and a number, of any arithmetic type, or a text.
struct NamedMetric {
  template <class Number>
  requires std::is_arithmetic_v<Number> NamedMetric(std::string_view metric_name, Number number)
      : name(metric_name), value(static_cast<double>(number)), is_whole(std::is_integral_v<Number>) {}
  NamedMetric(std::string_view metric_name, std::string_view text)
      : name(metric_name), value(std::string(text)) {}

  std::string name;
  MetricValue value;
  bool is_whole = false;  ///< an integer, written without a point
};

/// A machine's figure, written as it is in all lines: bytes are whole.
NamedMetric machine_metric(MachineSubject::Kind subject, std::string_view field, double value);

/// What a run says at once: of a logged step, of an evaluation, or of a machine. The names are those of
/// metrics.jsonl.
struct MetricsRecord {
  int64_t step = 0;                  ///< complete; of a machine: when this was measured
  std::vector<NamedMetric> metrics;  ///< names are unique, and none is "step"
  double unix_seconds = 0;           ///< when it was measured
  std::optional<MachineSubject> machine{};
  std::vector<NamedHistogram> histograms{};  ///< for TensorBoard alone; then there are no metrics
};
using RecordPtr = std::shared_ptr<const MetricsRecord>;

/// What sinks learn about a run before its first record.
struct RunFacts {
  using Texts = std::vector<std::pair<std::string, std::string>>;

  std::string directory;  ///< of the run; empty: none
  std::string run_id;     ///< kept when the run resumes
  std::optional<int64_t>
      resume_step;  ///< what was written of later steps is to be undone; nothing: a new run
  int64_t total_steps = 0;
  std::string config;                ///< the effective config, as text
  Texts fields;                      ///< the same, flattened: "trainer.seed" -> "7"
  Texts tags;                        ///< layout, version and hashes, by name
  bool several_hosts = false;        ///< names of machines' figures then begin with the host's
  double machine_every_seconds = 0;  ///< how often there are such figures; 0: never
};

enum class RunEnd { finished, failed, killed };  ///< killed: stopped by request, to be resumed

/// Something that metrics are written to: a file, a server, a page that others fetch. A SinkThread calls it,
/// from one thread. All methods may wait. They throw IoError for what may get better, after which the same
/// call is repeated; any other error turns the sink off for the rest of the run.
class Sink {
 public:
  virtual ~Sink() = default;
  /// Opens what it writes to, and goes back to RunFacts::resume_step. Called before all else.
  virtual void open() = 0;
  /// Writes the first ones of `records`, as many as it likes, and returns how many. At least one, or throws.
  virtual size_t write(std::span<const RecordPtr> records) = 0;
  /// Returns when all that was written would survive a crash of the machine, if it can see to that.
  virtual void sync() {}
  /// The last call. `report`: JSON, or empty if there is none.
  virtual void close(RunEnd, const std::string& /*report*/) {}
  /// What people should know, once; "" if there is nothing.
  virtual std::string take_message() { return {}; }
};

}  // namespace lockstep::observe
