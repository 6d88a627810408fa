#include "observe/sinks/kept_records.h"

#include <chrono>
#include <filesystem>

#include "observe/metrics_reader.h"

namespace lockstep::observe {

void for_each_kept_record(const RunFacts& facts, int64_t first_step,
                          const std::function<void(const MetricsRecord&)>& visit) {
  const std::string path = facts.directory + "/" + kMetricsFile;
  if (facts.directory.empty() || facts.resume_step.value_or(0) == 0 || !std::filesystem::exists(path)) return;
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  for (const auto& row : read_metrics(path)) {
    if (row.step() < first_step || row.step() > *facts.resume_step) continue;
    MetricsRecord record{.step = row.step(), .metrics = {}, .unix_seconds = now};
    for (const auto& [name, value] : row.values())
      if (const double* number = std::get_if<double>(&value); number != nullptr && name != "step")
        record.metrics.emplace_back(name, *number);
    visit(record);
  }
}

}  // namespace lockstep::observe
