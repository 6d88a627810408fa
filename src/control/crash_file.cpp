#include "control/crash_file.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <exception>
#include <filesystem>
#include <fstream>

#include "control/failure_report.h"

namespace lockstep::control {

std::string crash_text(const CrashRecord& record, const std::string& utc) {
  return fmt::format("time: {}\nhost: {}\npid: {}\nrank: {}\nexit code: {}\nthis rank: {}\n\n{}", utc,
                     record.who.host, record.who.pid, record.rank, record.decision.code,
                     situation_text(record.own), record.decision.report);
}

void write_crash_file(const std::string& directory, const CrashRecord& record) noexcept {
  if (directory.empty()) return;
  try {
    const std::filesystem::path folder(directory);
    std::error_code ignored;
    std::filesystem::create_directories(folder, ignored);
    std::ofstream file(folder / fmt::format("rank-{:05}.txt", record.rank), std::ios::trunc);
    file << crash_text(record, fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))));
  } catch (const std::exception&) {
  }
}

}  // namespace lockstep::control
