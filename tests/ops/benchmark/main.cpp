// What kernels reach on a GPU.
//
//   kernel_benchmark [float32|bfloat16|float16 ...]   kernels bound by memory, at sizes that no cache holds;
//                                                     with bfloat16 GPT-2's products and attention, too
//   kernel_benchmark ceilings                         a copy and a product, as JSON
//   kernel_benchmark convolutions                     convolutions' forward and both gradients, as JSON
//   kernel_benchmark --tiny ...                       the same of next to nothing: does it run?
//
// The table: the bytes that must move at the least (what is read and what is written, once), the median time
// of five rounds, the bandwidth, and its share of a copy's, which is measured anew before each op. PASS from
// 85 % on; the last line counts those below, and the program ends with 1 where there are any, unless tiny.
// GPT-2's products and attention are held against a large product instead, and neither pass nor fail. Ends
// with 77 where there is no GPU.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bench.h"
#include "lockstep/error.h"

namespace lockstep::ops {
namespace {

int measure_memory(Bench& bench, const std::vector<std::string>& words) {
  std::vector<DType> types;
  for (const auto& word : words) types.push_back(dtype_from_name(word));
  if (types.empty()) types = {DType::float32, DType::bfloat16, DType::float16};
  bench.measure_copy();
  fmt::print("{}: a copy moves {:.0f} GB/s, read and written\n", bench.device().description(),
             bench.copy_bytes_per_second() / 1e9);
  measure_step_kernels(bench);
  for (const DType type : types) {
    measure_ops(bench, type);
    measure_columns(bench, type);
  }
  if (std::count(types.begin(), types.end(), DType::bfloat16) > 0) measure_arithmetic(bench);
  const int too_slow = bench.conclude();
  return too_slow > 0 && !bench.tiny() ? 1 : 0;
}

int run(std::vector<std::string> words) {
  if (const device::GpuProbe probe = device::probe_gpus(); probe.devices.empty()) {
    fmt::print(stderr, "kernel_benchmark: {}\n", probe.problem);
    return 77;
  }
  Bench bench(std::erase(words, "--tiny") > 0);
  if (words == std::vector<std::string>{"ceilings"}) return print_ceilings(bench), 0;
  if (words == std::vector<std::string>{"convolutions"}) return print_convolutions(bench), 0;
  return measure_memory(bench, words);
}

}  // namespace
}  // namespace lockstep::ops

int main(int argc, char** argv) {
  try {
    return lockstep::ops::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "kernel_benchmark: {}\n", error.what());
    return 2;
  }
}
