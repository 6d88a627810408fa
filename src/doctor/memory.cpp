#include "doctor/memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/core_quota.h"
#include "base/text.h"

namespace lockstep::doctor {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMiB = int64_t{1} << 20, kGiB = kMiB << 10;
constexpr int64_t kLittle = kGiB, kTooLittle = 256 * kMiB;
// Libraries for GPUs reserve addresses by the hundred GiB; on CPUs a few are enough.
constexpr int64_t kFewAddresses = 8 * kGiB;
// Of a rank in /dev/shm: Open MPI's 4 MiB, and as much for gradients.
constexpr int64_t kSharedPerRank = 8 * kMiB, kSharedAtLeast = 64 * kMiB;

/// A number of a file that holds one; 0 if there is none, such as "max".
int64_t number_in(const fs::path& path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? number : 0;
}

/// A line such as "MemTotal:  8 kB", in bytes.
int64_t memory_field(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) * 1024;
  return 0;
}

void narrow(GroupMemory& known, int64_t limit, int64_t used) {
  // Version 1 says "no limit" by a number near 2^63.
  if (limit > 0 && limit < (int64_t{1} << 60) &&
      (known.limit == 0 || limit - used < known.limit - known.used))
    known = {.limit = limit, .used = used};
}

}  // namespace

GroupMemory group_memory(const fs::path& membership, const fs::path& root) {
  GroupMemory found;
  std::string own;
  std::ifstream file(membership);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("0::/")) own = line.substr(4);
  fs::path group = root;
  narrow(found, number_in(group / "memory.max"), number_in(group / "memory.current"));
  for (const auto& part : fs::path(own)) {
    group /= part;
    narrow(found, number_in(group / "memory.max"), number_in(group / "memory.current"));
  }
  narrow(found, number_in(root / "memory/memory.limit_in_bytes"),
         number_in(root / "memory/memory.usage_in_bytes"));
  return found;
}

Finding judge_memory(const MemoryFacts& facts) {
  if (facts.address_limit > 0 && facts.address_limit < kFewAddresses)
    return {Level::warn,
            fmt::format("a process may have {} of address space, less than training may need",
                        human_bytes(facts.address_limit)),
            "ulimit -v unlimited"};
  const int64_t in_group =
      facts.group_limit > 0 ? std::max<int64_t>(facts.group_limit - facts.group_used, 0) : facts.available;
  const int64_t available = std::min(facts.available, in_group);
  const std::string found = fmt::format(
      "{} of {} are available{}", human_bytes(available), human_bytes(facts.total),
      facts.group_limit > 0 ? fmt::format("; the control group allows {}", human_bytes(facts.group_limit))
                            : std::string());
  if (available >= kLittle) return {Level::ok, found};
  return {available < kTooLittle ? Level::fail : Level::warn, found + ", which is little",
          in_group < facts.available ? "docker run --memory=8g, or a larger request of the scheduler"
                                     : "ps -eo rss,pid,args --sort=-rss | head"};
}

Finding judge_shared_memory(const SharedMemoryFacts& facts) {
  if (!facts.problem.empty())
    return {
        Level::warn,
        fmt::format("/dev/shm cannot be used ({}): ranks on one host communicate more slowly", facts.problem),
        "mount -t tmpfs -o mode=1777,size=1g tmpfs /dev/shm"};
  const int64_t wanted = std::max(kSharedAtLeast, kSharedPerRank * facts.cores);
  const std::string found =
      fmt::format("{} of {} are free in /dev/shm", human_bytes(facts.free), human_bytes(facts.total));
  // A container's usual 64 MiB hold a few blocks of their own.
  if (facts.free >= wanted - kMiB) return {Level::ok, found};
  return {Level::warn,
          fmt::format("{}, less than the {} that {} rank{} here may need", found, human_bytes(wanted),
                      facts.cores, facts.cores == 1 ? "" : "s"),
          facts.total >= wanted ? "ls -l /dev/shm"
                                : "mount -o remount,size=1g /dev/shm, or docker run --shm-size=1g"};
}

std::vector<Finding> look_at_memory(const Request&) {
  const std::string text = read_text_file("/proc/meminfo");
  const GroupMemory group = group_memory();
  MemoryFacts facts{.total = memory_field(text, "MemTotal"),
                    .available = memory_field(text, "MemAvailable"),
                    .group_limit = group.limit,
                    .group_used = group.used};
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    facts.address_limit = static_cast<int64_t>(limit.rlim_cur);
  return {judge_memory(facts)};
}

std::vector<Finding> look_at_shared_memory(const Request&) {
  SharedMemoryFacts facts;
  const int quota = core_quota();
  facts.cores = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  if (quota > 0) facts.cores = std::min(facts.cores, quota);
  const std::string name = fmt::format("/lockstep-doctor-{}", ::getpid());
  const int file = ::shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  if (file < 0) facts.problem = std::strerror(errno);
  if (file >= 0) {
    ::shm_unlink(name.c_str());
    ::close(file);
  }
  struct statvfs room {};
  if (::statvfs("/dev/shm", &room) == 0) {
    facts.total = static_cast<int64_t>(room.f_blocks * room.f_frsize);
    facts.free = static_cast<int64_t>(room.f_bavail * room.f_frsize);
  }
  return {judge_shared_memory(facts)};
}

}  // namespace lockstep::doctor
