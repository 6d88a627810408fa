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

/// One line of metrics.jsonl. "nan", "inf" and "-inf" are numbers here, as they were when they were written.
class MetricsRow {
 public:
  MetricsRow(std::map<std::string, MetricValue, std::less<>> values, std::string where)
      : values_(std::move(values)), where_(std::move(where)) {}

  bool has(std::string_view name) const { return values_.find(name) != values_.end(); }
  /// Throws DataError naming file, line and what there is instead.
  double number(std::string_view name) const;
  int64_t step() const { return static_cast<int64_t>(number("step")); }
  const std::map<std::string, MetricValue, std::less<>>& values() const { return values_; }

 private:
  std::map<std::string, MetricValue, std::less<>> values_;
  std::string where_;  ///< "path:line"
};

/// All complete lines, in file order. A last line without its newline is still being written, or was torn
/// when the writer died: it is left out. Throws IoError if the file cannot be read, DataError "path:line:
/// ..." where a complete line is not an object of numbers and texts with a whole "step".
std::vector<MetricsRow> read_metrics(const std::string& path);

/// One line, without its newline. `where` begins the messages of errors.
MetricsRow parse_metrics_line(std::string_view line, const std::string& where);

}  // namespace lockstep::observe
