#include "doctor/host.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>

#include "base/core_quota.h"
#include "base/text.h"
#include "doctor/instruction_sets.h"

namespace lockstep::doctor {
namespace {

// A job's rank 0 holds a connection to every other rank, and MPI holds more.
constexpr int64_t kFewFiles = 1024, kTooFewFiles = 128;
// Whoever starts today is later than this: 1 January 2024.
constexpr int64_t kNotBefore = 1'704'067'200;

std::string processor_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return std::string(trim(line.substr(line.find(':') + 1)));
  return "a processor without a model name";
}

std::string plural(int number, const std::string& word) {
  return fmt::format("{} {}{}", number, word, number == 1 ? "" : "s");
}

}  // namespace

ProcessorFacts processor_facts() {
  ProcessorFacts facts{.model = processor_model(), .built_for = {}, .has = {}};
  const InstructionSets built = built_instruction_sets();
  if (built.avx2) facts.built_for.emplace_back("AVX2");
  if (built.fma) facts.built_for.emplace_back("FMA");
  if (built.avx512f) facts.built_for.emplace_back("AVX-512");
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) facts.has.emplace_back("AVX2");
  if (__builtin_cpu_supports("fma")) facts.has.emplace_back("FMA");
  if (__builtin_cpu_supports("avx512f")) facts.has.emplace_back("AVX-512");
#else
  facts.has = facts.built_for;  // other processors have no such names
#endif
  return facts;
}

Finding judge_processor(const ProcessorFacts& facts) {
  std::vector<std::string> missing;
  for (const auto& set : facts.built_for)
    if (std::ranges::find(facts.has, set) == facts.has.end()) missing.push_back(set);
  if (!missing.empty())
    return {Level::fail,
            fmt::format("{} lacks {}, which this program was built for", facts.model, join(missing, ", ")),
            "cmake --preset release -DLOCKSTEP_CPU_ARCH=native && cmake --build --preset release"};
  return {Level::ok,
          facts.has.empty() ? facts.model : fmt::format("{} with {}", facts.model, join(facts.has, ", "))};
}

Finding judge_cores(const CoreFacts& facts) {
  const std::string found = fmt::format(
      "{} of {} may be used{}", facts.allowed, plural(facts.host, "core"),
      facts.quota > 0 ? fmt::format(", with the time of {} (control group)", facts.quota) : std::string());
  if (facts.allowed == 1 && facts.host > 1)
    return {Level::warn, found + ": this shell is bound to one of them",
            fmt::format("taskset -p -c 0-{} $$", facts.host - 1)};
  return {Level::ok, found};
}

Finding judge_clock(const ClockFacts& facts) {
  if (facts.seconds_since_1970 < kNotBefore)
    return {Level::fail, "the clock shows a year before 2024", "timedatectl set-ntp true"};
  // Read by a call of the system, microseconds each time.
  if (facts.source == "hpet" || facts.source == "acpi_pm")
    return {Level::warn, fmt::format("the kernel takes time from {}, which is slow to read", facts.source),
            "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource"};
  return {Level::ok,
          fmt::format("{}{}", facts.source.empty() ? "the date is plausible" : "source " + facts.source,
                      facts.synchronized ? ", synchronized"
                                         : ", not synchronized here (doctor --job compares hosts' clocks)")};
}

Finding judge_open_files(const OpenFilesFacts& facts) {
  const std::string found = fmt::format("at most {} files and sockets per process", facts.limit);
  if (facts.limit >= kFewFiles) return {Level::ok, found};
  const bool may_raise = facts.hard_limit >= kFewFiles;
  return {facts.limit < kTooFewFiles ? Level::fail : Level::warn,
          fmt::format("{}, below {}: large jobs run out of them", found, kFewFiles),
          may_raise ? fmt::format("ulimit -n {}", std::min<int64_t>(facts.hard_limit, 65536))
                    : "as root: prlimit --pid $$ --nofile=65536:65536"};
}

std::vector<Finding> look_at_processor(const Request&) { return {judge_processor(processor_facts())}; }

std::vector<Finding> look_at_cores(const Request&) {
  CoreFacts facts{.host = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)), .quota = core_quota()};
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const bool known = ::sched_getaffinity(0, sizeof allowed, &allowed) == 0;
  facts.allowed = known ? CPU_COUNT(&allowed) : facts.host;
  return {judge_cores(facts)};
}

std::vector<Finding> look_at_clock(const Request&) {
  ClockFacts facts{.seconds_since_1970 = ::time(nullptr)};
  std::ifstream("/sys/devices/system/clocksource/clocksource0/current_clocksource") >> facts.source;
  timex state{};
  const int status = ::adjtimex(&state);
  facts.synchronized = status >= 0 && status != TIME_ERROR && (state.status & STA_UNSYNC) == 0;
  return {judge_clock(facts)};
}

std::vector<Finding> look_at_open_files(const Request&) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return {{Level::warn, "the limit of open files is unknown", "ulimit -n"}};
  const auto number = [](rlim_t value) {
    return value == RLIM_INFINITY ? INT64_MAX : static_cast<int64_t>(value);
  };
  return {judge_open_files({.limit = number(limit.rlim_cur), .hard_limit = number(limit.rlim_max)})};
}

}  // namespace lockstep::doctor
