#include "doctor/data.h"

#include <fmt/format.h>

#include <filesystem>
#include <limits>
#include <system_error>

#include "base/clock.h"
#include "base/text.h"
#include "config/run_config.h"
#include "data/byte_source.h"
#include "data/dataset.h"
#include "lockstep/error.h"

namespace lockstep::doctor {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kReadingTime{6};

std::string fix_for(const Error& error, const std::string& folder) {
  const std::string where = folder.empty() ? "." : folder;
  switch (error.code()) {
    case ExitCode::usage:
      return "lockstep config check CONFIG";
    case ExitCode::data:
      return "fetch the file named above again; sha256sum tells copies apart";
    default:
      return "ls -la " + where;
  }
}

std::vector<Finding> look_at_config_data(const Request& request) {
  auto overrides = request.overrides;
  if (!request.data_directory.empty()) overrides.push_back("data.directory=" + request.data_directory);
  try {
    const auto config = config::load_run_config(request.config, overrides);
    const auto datasets = data::open_datasets(config.data);
    std::vector<Finding> found{{Level::ok, datasets.train->description()}};
    if (datasets.eval) found.push_back({Level::ok, "evaluation: " + datasets.eval->description()});
    return found;
  } catch (const Error& error) {
    return {{Level::fail, error.what(), fix_for(error, request.data_directory)}};
  }
}

/// How many bytes it holds, inflated. Throws what ByteSource does.
int64_t read_through(const std::string& path, Deadline deadline) {
  data::ByteSource source(path, std::numeric_limits<int64_t>::max());  // nothing is kept
  std::string block(size_t{1} << 20, '\0');
  int64_t total = 0;
  while (const int64_t got = source.read(block.data(), static_cast<int64_t>(block.size()))) {
    total += got;
    if (Clock::now() > deadline) break;
  }
  return total;
}

std::vector<Finding> look_at_folder(const std::string& folder) {
  std::error_code problem;
  int files = 0;
  int64_t bytes = 0;
  const auto start = Clock::now();
  const Deadline deadline = start + kReadingTime;
  for (fs::directory_iterator entry(folder, problem), end; !problem && entry != end;
       entry.increment(problem)) {
    std::error_code ignored;
    if (!entry->is_regular_file(ignored)) continue;
    try {
      bytes += read_through(entry->path().string(), deadline);
    } catch (const Error& error) {
      return {{Level::fail, error.what(), fix_for(error, folder)}};
    }
    ++files;
    if (Clock::now() > deadline) break;
  }
  if (problem)
    return {{Level::fail, fmt::format("cannot read the folder {}: {}", folder, problem.message()),
             "ls -la " + folder}};
  if (files == 0)
    return {{Level::warn, fmt::format("{} holds no files", folder), "lockstep data digits --out " + folder}};
  const double seconds = milliseconds_between(start, Clock::now()) / 1000;
  return {{Level::ok, fmt::format("{}: {} file{} read, {} in {}{}", folder, files, files == 1 ? "" : "s",
                                  human_bytes(bytes), human_seconds(seconds),
                                  Clock::now() > deadline ? ", the rest was not checked" : "")}};
}

}  // namespace

std::vector<Finding> look_at_data(const Request& request) {
  if (!request.config.empty()) return look_at_config_data(request);
  if (request.data_directory.empty())
    return {{Level::skip, "no data named; with CONFIG --data-dir DIR doctor opens them"}};
  return look_at_folder(request.data_directory);
}

}  // namespace lockstep::doctor
