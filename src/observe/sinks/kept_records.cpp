#include "observe/sinks/kept_records.h"

#include <chrono>
#include <filesystem>

#include "observe/metrics_reader.h"
#include "observe/sinks/record_line.h"

namespace lockstep::observe {

void for_each_kept_record(const RunFacts& facts, int64_t first_step,
                          const std::function<void(const MetricsRecord&)>& visit) {
  const std::string path = facts.directory + "/" + kMetricsFile;
  if (facts.directory.empty() || facts.resume_step.value_or(0) == 0 || !std::filesystem::exists(path)) return;
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  for (const auto& row : read_metrics(path, MetricsLines::all)) {
    if (row.step() < first_step || row.step() > *facts.resume_step) continue;
    MetricsRecord record = record_of(row);
    if (row.has(kKindField) && !record.machine) continue;  // of a later version
    record.unix_seconds = now;
    visit(record);
  }
}

}  // namespace lockstep::observe
