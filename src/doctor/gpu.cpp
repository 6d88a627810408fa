#include "doctor/gpu.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdio>

#include "base/shared_library.h"
#include "base/text.h"
#include "comm/communicator.h"
#include "control/descriptor.h"
#include "device/device.h"

namespace lockstep::doctor {
namespace {

constexpr const char* kBuildWithCuda =
    "cmake --preset release -DLOCKSTEP_CUDA=ON && cmake --build --preset release";

std::string cuda_version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

/// What the kernel has said since its buffer began; nothing if that may not be read.
std::optional<std::string> kernel_log() {
  const control::Descriptor file(::open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid()) return {};
  std::string log;
  std::array<char, 8192> record{};
  // Each read gives one record; the last one says that it would have to wait.
  while (true) {
    const ssize_t got = ::read(file.get(), record.data(), record.size());
    if (got <= 0) return log;
    log.append(record.data(), static_cast<size_t>(got));
  }
}

std::string describe(const device::GpuState& gpu) {
  std::string text = fmt::format("GPU {}: {}, {}", gpu.index, gpu.name, human_bytes(gpu.memory_bytes));
  if (gpu.power_limit_watts) text += fmt::format(", {:.0f} W", *gpu.power_limit_watts);
  if (gpu.uncorrected_errors) text += fmt::format(", {} uncorrected ECC errors", *gpu.uncorrected_errors);
  return text;
}

/// The worst thing about it.
Finding judge(const device::GpuState& gpu) {
  const std::string found = describe(gpu);
  const std::string smi = fmt::format("nvidia-smi -i {} ", gpu.index);
  if (gpu.remapping_failed.value_or(false))
    return {Level::fail, found + "; rows of its memory are broken, and no spare rows are left",
            smi + "-q -d ROW_REMAPPER, and have it replaced"};
  if (gpu.uncorrected_errors.value_or(0) > 0 || gpu.reset_pending.value_or(false))
    return {Level::warn, found + "; its memory needs a reset", smi + "--gpu-reset"};
  if (gpu.slices.value_or(false))
    return {Level::warn, found + "; it is divided into MIG slices, and NCCL does not work between them",
            smi + "-mig 0"};
  if (gpu.power_limit_watts && gpu.default_power_limit_watts &&
      *gpu.power_limit_watts < *gpu.default_power_limit_watts * 0.99)
    return {Level::warn,
            fmt::format("{}, of {:.0f} W by default: it is slower", found, *gpu.default_power_limit_watts),
            smi + fmt::format("-pl {:.0f}", *gpu.default_power_limit_watts)};
  if (!gpu.persistent.value_or(true))
    return {Level::warn, found + "; persistence is off, so every start loads the driver's state",
            smi + "-pm 1"};
  return {Level::ok, found};
}

Finding judge_xids(const std::optional<std::map<int, int>>& xids) {
  if (!xids) return {Level::ok, "this user may not read the kernel's log, which has XID errors"};
  if (xids->empty()) return {Level::ok, "no XID error in the kernel's log"};
  std::vector<std::string> texts;
  for (const auto& [number, count] : *xids) texts.push_back(fmt::format("XID {} {} times", number, count));
  return {Level::warn, "the kernel's log has GPU errors: " + join(texts, ", "), "dmesg | grep Xid"};
}

Finding judge_links(const std::vector<device::GpuLink>& links) {
  std::map<std::string, std::vector<std::string>> by_kind;
  for (const auto& link : links) by_kind[link.kind].push_back(fmt::format("{}-{}", link.first, link.second));
  std::vector<std::string> texts;
  for (const auto& [kind, pairs] : by_kind)
    texts.push_back(by_kind.size() == 1 ? "all pairs by " + kind : join(pairs, " ") + " by " + kind);
  return {Level::ok, "topology: " + join(texts, "; ")};
}

}  // namespace

std::map<int, int> xid_counts(std::string_view log) {
  constexpr std::string_view kMark = "NVRM: Xid (";
  std::map<int, int> counts;
  for (const std::string_view line : split(log, '\n')) {
    const size_t mark = line.find(kMark);
    const size_t colon = mark == std::string_view::npos ? mark : line.find("): ", mark);
    if (colon == std::string_view::npos) continue;
    int number = 0;
    for (size_t at = colon + 3; at < line.size() && line[at] >= '0' && line[at] <= '9' && number < 100000;
         ++at)
      number = number * 10 + (line[at] - '0');
    if (number > 0) ++counts[number];
  }
  return counts;
}

std::vector<Finding> judge_gpus(const device::NvmlFacts& facts,
                                const std::optional<std::map<int, int>>& xids) {
  if (!facts.present) return {{Level::skip, "no NVIDIA driver: lockstep computes on CPUs"}};
  if (facts.gpus.empty())
    return {{Level::fail, facts.problem.empty() ? "there is a driver, but no GPU" : facts.problem,
             "nvidia-smi, and in a container: docker run --gpus all"}};
  std::vector<Finding> findings{
      {Level::ok, fmt::format("driver {}, {} GPU{}", facts.driver, facts.gpus.size(),
                              facts.gpus.size() == 1 ? "" : "s")}};
  if (!facts.problem.empty()) findings.push_back({Level::fail, facts.problem, "dmesg | grep -i nvrm"});
  for (const auto& gpu : facts.gpus) findings.push_back(judge(gpu));
  findings.push_back(judge_xids(xids));
  if (!facts.links.empty()) findings.push_back(judge_links(facts.links));
  return findings;
}

Finding judge_cuda(const CudaFacts& facts) {
  if (facts.gpus == 0) return {Level::skip, "no GPU to compute on"};
  if (facts.libraries.empty())
    return {Level::warn, "this program is built without CUDA and does not use GPUs", kBuildWithCuda};
  if (!facts.driver_problem.empty())
    return {Level::fail, "the driver's libcuda.so.1 does not answer: " + facts.driver_problem,
            "in a container: docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility"};
  int major = 0, minor = 0;
  const size_t at = facts.libraries.find("cuda=");
  if (at == std::string::npos || std::sscanf(facts.libraries.c_str() + at, "cuda=%d.%d", &major, &minor) != 2)
    return {Level::warn, "the CUDA that this program uses is unknown: " + facts.libraries, kBuildWithCuda};
  const std::string found = fmt::format("the driver supports CUDA {}, this program uses {}.{}",
                                        cuda_version_text(facts.driver_version), major, minor);
  if (facts.driver_version / 1000 >= major) return {Level::ok, found};
  return {Level::fail, found,
          fmt::format("update the driver (nvidia-smi shows it), or build with CUDA {}",
                      facts.driver_version / 1000)};
}

Finding judge_nccl(const NcclFacts& facts) {
  if (facts.gpus == 0) return {Level::skip, "no GPU to communicate between"};
  if (facts.library.empty())
    return {Level::warn, "this program is built without NCCL and does not use GPUs", kBuildWithCuda};
  return {Level::ok, facts.library};
}

std::vector<Finding> look_at_gpus(const Request&) {
  const device::NvmlFacts facts = device::nvml_facts();
  std::optional<std::map<int, int>> xids;
  if (const auto log = kernel_log()) xids = xid_counts(*log);
  return judge_gpus(facts, xids);
}

std::vector<Finding> look_at_cuda(const Request&) {
  CudaFacts facts{
      .gpus = static_cast<int>(device::nvml_facts().gpus.size()), .libraries = {}, .driver_problem = {}};
  if (facts.gpus == 0) return {judge_cuda(facts)};
  facts.libraries = device::gpu_libraries();
  const SharedLibrary driver("libcuda.so.1");
  if (!driver.loaded())
    facts.driver_problem = driver.problem();
  else if (const int status = driver.call("cuInit", 0U); status != 0)
    facts.driver_problem = fmt::format("cuInit returns {}", status);
  else
    driver.call("cuDriverGetVersion", &facts.driver_version);
  return {judge_cuda(facts)};
}

std::vector<Finding> look_at_nccl(const Request&) {
  return {judge_nccl({.gpus = static_cast<int>(device::nvml_facts().gpus.size()),
                      .library = comm::gpu_communication_library()})};
}

}  // namespace lockstep::doctor
