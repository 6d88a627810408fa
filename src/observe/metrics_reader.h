#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace lockstep::observe {

using MetricValue = std::variant<double, std::string>;

/// One line of metrics.jsonl. "nan", "inf" and "-inf" are read as numbers again.
class MetricsRow {
 public:
  MetricsRow(std::map<std::string, MetricValue, std::less<>> values, std::string where)
      : values_(std::move(values)), where_(std::move(where)) {}

  bool has(std::string_view name) const { return values_.find(name) != values_.end(); }
  /// Throws DataError, which names file, line and what was found.
  double number(std::string_view name) const;
  int64_t step() const { return static_cast<int64_t>(number("step")); }
  const std::map<std::string, MetricValue, std::less<>>& values() const { return values_; }

 private:
  std::map<std::string, MetricValue, std::less<>> values_;
  std::string where_;  ///< "path:line"
};

/// Which lines of metrics.jsonl: those of steps and evaluations, or also those of machines, which have a
/// "kind" (machine/subject.h).
enum class MetricsLines { run, all };

/// The complete lines, in file order. Skips a last line without a newline: it is still being written, or its
/// writer died. Throws IoError if the file cannot be read, and DataError "path:line: ..." if a complete line
/// is not an object of numbers and texts with a whole "step".
std::vector<MetricsRow> read_metrics(const std::string& path, MetricsLines lines = MetricsLines::run);

/// One line, without its newline. `where` begins the messages of errors.
MetricsRow parse_metrics_line(std::string_view line, const std::string& where);

}  // namespace lockstep::observe
