#include "doctor/storage.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>

#include "base/clock.h"
#include "base/file_size_limit.h"
#include "base/text.h"
#include "control/descriptor.h"

namespace lockstep::doctor {
namespace {

namespace fs = std::filesystem;
using control::Descriptor;

constexpr int64_t kMebibyte = int64_t{1} << 20;
constexpr int64_t kLittleSpace = 1024 * kMebibyte, kTooLittleSpace = 100 * kMebibyte;
constexpr int64_t kTrialBytes = 64 * kMebibyte;
constexpr double kWriteSeconds = 1.5;
constexpr double kSlowBytesPerSecond = 20.0 * kMebibyte;

/// Of statfs(2).
std::string file_system_name(int64_t type) {
  static const std::map<int64_t, std::string> kNames{
      {0xEF53, "ext4"},     {0x58465342, "xfs"},    {0x9123683E, "btrfs"},   {0x01021994, "tmpfs"},
      {0x6969, "nfs"},      {0x0BD00BD0, "lustre"}, {0x794C7630, "overlay"}, {0x65735546, "fuse"},
      {0x47504653, "gpfs"}, {0x00C36400, "ceph"},   {0x2FC12FC1, "zfs"},     {0x01021997, "9p"}};
  const auto known = kNames.find(type);
  return known == kNames.end() ? fmt::format("type {:#x}", type) : known->second;
}

std::string nearest_folder(const std::string& path) {
  std::error_code error;
  fs::path folder = fs::absolute(path, error).lexically_normal();
  while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  return folder.string();
}

std::string reason() { return std::strerror(errno); }

/// Writes to a file without a name, as fast as it goes, until it is large or the time is over.
void try_writing(StorageFacts& facts) {
  const std::string name = fmt::format("{}/.lockstep-doctor-{}.tmp", facts.folder, ::getpid());
  const Descriptor file(::open(name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
  if (!file.valid()) {
    facts.write_problem = reason();
    return;
  }
  ::unlink(name.c_str());
  // Not zeros, which some file systems do not store.
  std::string block(static_cast<size_t>(kMebibyte), '\0');
  for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<char>((i * 2654435761U) >> 13);
  const int64_t most = std::min(kTrialBytes, facts.free_bytes / 4);
  const auto start = Clock::now();
  const auto seconds = [&] { return milliseconds_between(start, Clock::now()) / 1000; };
  while (facts.written_bytes < most && seconds() < kWriteSeconds) {
    const ssize_t written = ::write(file.get(), block.data(), block.size());
    if (written < 0 && errno == EFBIG) return;  // the limit says it
    if (written <= 0) {
      facts.write_problem = reason();
      return;
    }
    facts.written_bytes += written;
  }
  if (::fsync(file.get()) != 0) facts.fsync_problem = "fsync of a file: " + reason();
  facts.written_seconds = seconds();
}

/// As a checkpoint becomes visible: a folder is filled under one name, made durable, and renamed.
void try_renaming(StorageFacts& facts) {
  const fs::path before = fmt::format("{}/.lockstep-doctor-{}.partial", facts.folder, ::getpid());
  const fs::path after = fmt::format("{}/.lockstep-doctor-{}.done", facts.folder, ::getpid());
  std::error_code error;
  if (!fs::create_directory(before, error)) {
    facts.write_problem = error.message();
    return;
  }
  const Descriptor file(::open((before / "part").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  if (!file.valid() || ::write(file.get(), "x", 1) != 1) facts.write_problem = reason();
  if (::rename(before.c_str(), after.c_str()) != 0)
    facts.rename_problem = "a folder cannot be renamed: " + reason();
  else if (fs::exists(before, error) || !fs::exists(after / "part", error))
    facts.rename_problem = "a renamed folder is incomplete, or still has its old name";
  const Descriptor folder(::open(facts.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.valid() && ::fsync(folder.get()) != 0) facts.fsync_problem = "fsync of a folder: " + reason();
  fs::remove_all(before, error);
  fs::remove_all(after, error);
}

}  // namespace

StorageFacts storage_facts(const std::string& output_directory) {
  StorageFacts facts;
  facts.folder = nearest_folder(output_directory);
  struct statfs room {};
  if (::statfs(facts.folder.c_str(), &room) != 0) {
    facts.write_problem = reason();
    return facts;
  }
  facts.file_system = file_system_name(static_cast<int64_t>(room.f_type));
  facts.file_limit = file_size_limit();
  facts.free_bytes = static_cast<int64_t>(room.f_bavail) * static_cast<int64_t>(room.f_bsize);
  try_writing(facts);
  if (facts.write_problem.empty()) try_renaming(facts);
  return facts;
}

Finding judge_storage(const StorageFacts& facts) {
  const std::string where = fmt::format("{} ({})", facts.folder, facts.file_system);
  const std::string room = fmt::format("{} free", human_bytes(facts.free_bytes));
  if (!facts.write_problem.empty() && (facts.free_bytes >= kTooLittleSpace || facts.file_system.empty()))
    return {Level::fail, fmt::format("{} cannot be written to: {}", where, facts.write_problem),
            "ls -ld " + facts.folder};
  if (facts.file_limit && *facts.file_limit < kTooLittleSpace)
    return {Level::fail, fmt::format("{}: a file may have at most {}", where, human_bytes(*facts.file_limit)),
            "ulimit -f unlimited"};
  if (facts.free_bytes < kTooLittleSpace)
    return {Level::fail, fmt::format("{} has only {}", where, room), "df -h " + facts.folder};
  if (!facts.rename_problem.empty() || !facts.fsync_problem.empty())
    return {Level::fail,
            fmt::format("{}: checkpoints would not be safe there: {}", where,
                        facts.rename_problem.empty() ? facts.fsync_problem : facts.rename_problem),
            "pass a folder on another file system as --out; df -T lists them"};
  const double speed = static_cast<double>(facts.written_bytes) / std::max(facts.written_seconds, 1e-6);
  const std::string found = fmt::format("{}: {}, writes {}/s with fsync, renames whole folders", where, room,
                                        human_bytes(static_cast<int64_t>(speed)));
  if (facts.file_limit && *facts.file_limit < kLittleSpace)
    return {Level::warn, fmt::format("{}; a file may have at most {}", found, human_bytes(*facts.file_limit)),
            "ulimit -f unlimited"};
  if (facts.free_bytes < kLittleSpace)
    return {Level::warn, found + "; that is little room for checkpoints", "df -h " + facts.folder};
  if (facts.written_bytes > 0 && speed < kSlowBytesPerSecond)
    return {Level::warn, found + "; that is slow", "pass a faster folder as --out; df -T lists them"};
  return {Level::ok,
          found + (facts.file_system == "tmpfs" ? "; it is in memory, and lost if the host restarts" : "")};
}

std::vector<Finding> look_at_storage(const Request& request) {
  if (request.output_directory.empty())
    return {{Level::skip, "no folder named; pass --out DIR to check the folder of runs"}};
  return {judge_storage(storage_facts(request.output_directory))};
}

}  // namespace lockstep::doctor
