#pragma once

#include <map>
#include <string>
#include <vector>

#include "observe/sinks/append_file.h"
#include "observe/sinks/sink.h"

namespace lockstep::observe {

inline constexpr const char* kEventFolder = "tensorboard";  ///< in the folder of a run

/// A file of events for TensorBoard, in a folder with those of the run's earlier parts. Those are never
/// changed: a resumed run begins another file, which tells readers from which step on earlier ones do not
/// count, and repeats from metrics.jsonl what a crash has taken from them.
class TensorboardSink : public Sink {
 public:
  explicit TensorboardSink(RunFacts facts) : facts_(std::move(facts)) {}

  /// Throws ConfigError if the folder holds files of another run.
  void open() override;
  size_t write(std::span<const RecordPtr> records) override;
  void sync() override { file_.sync(); }
  void close(RunEnd end, const std::string& report) override;

 private:
  /// Those of the folder, in the order in which they are read.
  std::vector<std::string> earlier_files() const;
  std::string first_events(int64_t first_step) const;
  std::string events_of(const MetricsRecord& record);

  RunFacts facts_;
  AppendFile file_;
  int64_t last_step_ = 0;
  std::map<std::string, int64_t> machine_steps_;  // the last step that machines' figures are of, by group
};

}  // namespace lockstep::observe
