// What a first run on a GPU should find out beside speed, as lines of JSON. scripts/gpu_probe.py prints
// tables of them.
//
//   gpu_probe PART [--tiny]
//
//   products       GPT-2's products by each algorithm that cuBLASLt offers, and which products it refuses
//   attention      forward and backward at GPT-2's shape, without and with dropout
//   convolutions   ResNet-50's, forward and both gradients
//   launches       prices of launches, stream writes, events, graphs and pinning
//
// --tiny: the same of next to nothing; figures mean nothing then. Ends with 1 if something of lockstep's
// own fails, after the rest of the part was measured; with 77 if there is no GPU.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "probe.h"

namespace lockstep::ops {
namespace {

struct Part {
  std::string_view name;
  bool (*probe)(Bench&);
};
constexpr Part kParts[] = {{"products", probe_products},
                           {"attention", probe_attention},
                           {"convolutions", probe_convolutions},
                           {"launches", probe_launches}};

int run(std::vector<std::string> words) {
  const bool tiny = std::erase(words, "--tiny") > 0;
  const auto* const part = std::find_if(std::begin(kParts), std::end(kParts), [&](const Part& each) {
    return words.size() == 1 && each.name == words[0];
  });
  if (part == std::end(kParts)) {
    fmt::print(stderr, "usage: gpu_probe products|attention|convolutions|launches [--tiny]\n");
    return 2;
  }
  if (const device::GpuProbe found = device::probe_gpus(); found.devices.empty()) {
    fmt::print(stderr, "gpu_probe: {}\n", found.problem);
    return 77;
  }
  Bench bench(tiny);
  print_line({{"part", part->name},
              {"device", bench.device().description()},
              {"libraries", device::gpu_libraries()}});
  return part->probe(bench) ? 0 : 1;
}

}  // namespace
}  // namespace lockstep::ops

int main(int argc, char** argv) {
  try {
    return lockstep::ops::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_probe: {}\n", error.what());
    return 2;
  }
}
