#include "train/start/shared_directory.h"

#include <fmt/format.h>

#include <exception>
#include <filesystem>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "base/file_system.h"
#include "base/hash.h"
#include "base/index.h"
#include "base/text.h"
#include "comm/agreement.h"
#include "comm/gather_texts.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kBetweenLooks{50};

void write_file(const std::string& path) {
  const auto file = posix_file_system().create(path);
  file->write(path.data(), path.size());
  file->close();
}

void remove_quietly(const std::string& path) {
  std::error_code nothing_there;
  fs::remove(path, nothing_there);
}

/// Reading the folder makes network file systems ask their server anew.
bool sees(const std::string& directory, const std::string& name, Deadline deadline) {
  while (true) {
    std::error_code unreadable;
    for (fs::directory_iterator entry(directory, unreadable), end; !unreadable && entry != end;
         entry.increment(unreadable))
      if (entry->path().filename() == name) return true;
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

/// "rank 3 on host b, ranks 4, 5 on host c".
std::string list_ranks(const std::vector<std::string>& hosts, const std::vector<int>& ranks) {
  std::map<std::string, std::vector<std::string>> by_host;
  for (const int rank : ranks) by_host[nth(hosts, rank)].push_back(std::to_string(rank));
  std::vector<std::string> parts;
  for (const auto& [host, own] : by_host)
    parts.push_back(fmt::format("rank{} {} on host {}", own.size() == 1 ? "" : "s", join(own, ", "), host));
  return join(parts, ", ");
}

}  // namespace

void check_shared_directory(comm::Communicator& world, const std::string& directory, const std::string& host,
                            std::chrono::milliseconds patience) {
  const int rank = world.rank();
  std::exception_ptr failure;
  std::string name = fmt::format(".lockstep-probe-{}",
                                 to_hex((uint64_t{std::random_device()()} << 32) | std::random_device()()));
  try {
    if (rank == 0) write_file(directory + "/" + name);
  } catch (const Error&) {
    failure = std::current_exception();
  }
  comm::agree_on_outcome(world, failure, comm::kPatience);
  name = comm::gather_texts(world, name, comm::kPatience)[0];
  const std::string path = directory + "/" + name;

  const bool seen = rank == 0 || sees(directory, name, deadline_in(patience));
  try {
    if (seen && rank > 0) {
      const std::string own = fmt::format("{}.{}", path, rank);
      write_file(own);
      remove_quietly(own);
    }
  } catch (const Error& error) {
    failure = std::make_exception_ptr(
        ConfigError(fmt::format("{} (on host {}); every rank writes its part of a checkpoint there: --out "
                                "must name a folder that all of "
                                "them may write to",
                                error.what(), host)));
  }
  const auto hosts = comm::gather_texts(world, host, comm::kPatience);
  const auto looks = comm::gather_texts(world, seen ? directory : "", comm::kPatience);
  if (rank == 0) remove_quietly(path);
  std::vector<int> blind;
  for (size_t r = 0; r < looks.size(); ++r)
    if (looks[r].empty()) blind.push_back(static_cast<int>(r));
  if (!blind.empty())
    throw comm::CollectiveError(
        fmt::format("--out {}: {} {} not see what rank 0 on host {} writes there. Every rank writes its part "
                    "of a checkpoint and "
                    "reads all of it: name a folder on a file system that all hosts share.",
                    looks[0], list_ranks(hosts, blind), blind.size() == 1 ? "does" : "do", hosts[0]),
        ExitCode::usage);
  comm::agree_on_outcome(world, failure, comm::kPatience);
}

}  // namespace lockstep::train
