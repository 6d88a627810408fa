#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "observe/metrics_reader.h"

namespace lockstep::observe {

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

/// Writes metrics.jsonl: one JSON object per line, "step" first. Each line is one write to the file, so
/// readers see it at once, and a crash of the process loses nothing. Numbers have the shortest digits that
/// read back as the same bits. Every failure throws IoError, which names the path. Not thread-safe.
class MetricsWriter {
 public:
  /// The lines that resuming dropped.
  struct Dropped {
    int64_t later = 0;    ///< lines of steps after the one resumed from: they will be written again
    int64_t damaged = 0;  ///< lines that cannot be read, such as a torn last one
  };

  /// Without `resume_step` the file begins anew. With it, lines of later steps and damaged lines are dropped
  /// first. The new file replaces the old one as a whole, so a crash leaves one of the two.
  explicit MetricsWriter(const std::string& path, std::optional<int64_t> resume_step = std::nullopt);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  /// REQUIRES: names are unique, and none is "step". After an IoError the file ends with a whole line; the
  /// next write(), sync() or finish() writes the missing lines first.
  void write(int64_t step, const std::vector<NamedMetric>& metrics);
  /// Waits until all lines are on disk, so that no checkpoint is newer than its metrics.
  void sync();
  /// sync(), then close. Without it the destructor closes, and does not report failures.
  void finish();

  const Dropped& dropped() const { return dropped_; }

 private:
  /// The most bytes of lines that are kept while they cannot be written; the file may never accept any again.
  static constexpr size_t kMostWaitingBytes = 64 << 20;
  void write_waiting();

  std::string path_;
  int file_ = -1;
  int64_t size_bytes_ = 0;
  Dropped dropped_;
  std::deque<std::string> waiting_;  // lines that are not in the file
  size_t waiting_bytes_ = 0;
  int64_t lost_lines_ = 0;  // lines beyond the limit; finish() reports them
};

}  // namespace lockstep::observe
