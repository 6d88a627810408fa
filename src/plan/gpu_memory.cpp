#include "plan/gpu_memory.h"

#include <algorithm>
#include <cctype>

namespace lockstep::plan {
namespace {

struct NamedGpu {
  std::string_view name;
  int gigabytes;
};

/// From their data sheets.
constexpr NamedGpu kGpus[] = {
    {"B200", 180},     {"H200", 141},     {"H100", 80},     {"A100-80GB", 80}, {"A100-40GB", 40},
    {"L40S", 48},      {"A40", 48},       {"L4", 24},       {"A10", 24},       {"T4", 16},
    {"V100-32GB", 32}, {"V100-16GB", 16}, {"RTX-5090", 32}, {"RTX-4090", 24},  {"RTX-3090", 24},
};

bool same_in_any_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::toupper(x) == std::toupper(y); });
}

}  // namespace

int64_t bytes_for_plans(int64_t gpu_bytes) {
  constexpr int64_t kContext = int64_t{512} << 20;
  return std::max<int64_t>(0, gpu_bytes - gpu_bytes / 50 - kContext);
}

std::optional<int64_t> memory_of_gpu(std::string_view name) {
  for (const NamedGpu& gpu : kGpus)
    if (same_in_any_case(gpu.name, name)) return int64_t{gpu.gigabytes} * 1'000'000'000;
  return {};
}

std::vector<std::string> names_of_gpus() {
  std::vector<std::string> names;
  for (const NamedGpu& gpu : kGpus) names.emplace_back(gpu.name);
  return names;
}

}  // namespace lockstep::plan
