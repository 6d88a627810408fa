// ResNet-50's convolutions by cuDNN, as lines of JSON: what gpu_probe's are held beside.
//
//   cudnn_probe [--tiny]
//
// Of each shape forward, input gradient, weight gradient, and the weight gradient that is written as float32,
// which training with float32 weights needs: microseconds by the fastest of the first plans that work, and by
// the fastest that gives the same bits in every run. Ends with 77 if there is no GPU or no cuDNN, which is
// loaded from where the loader looks.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cudnn_convolution.h"
#include "lockstep/error.h"
#include "probe.h"

namespace lockstep::ops {
namespace {

constexpr int kTimedPlans = 8;          // that work
constexpr int64_t kMostProposals = 24;  // until one of them is deterministic
constexpr int64_t kMostWorkspaceBytes = int64_t{1} << 30;

/// Memory for a convolution's tensors, wide enough for float32.
struct ConvolutionMemory {
  ConvolutionMemory(Bench& bench, const ProbedConvolution& c, int64_t batch) {
    const auto make = [&](int64_t count) { return bench.make({Shape({2 * count}), DType::bfloat16}).data; };
    x = make(batch * c.side * c.side * c.channels);
    w = make(c.out_channels * c.kernel * c.kernel * c.channels);
    y = make(batch * c.out_side() * c.out_side() * c.out_channels);
    workspace = bench.make_bytes(kMostWorkspaceBytes);
  }
  void *x, *w, *y, *workspace;
};

void keep_least(Line& line, const char* name, double value) {
  line[name] = line.contains(name) ? std::min(line[name].get<double>(), value) : value;
}

Line measure(Bench& bench, const Cudnn& library, const ProbedConvolution& shape, int64_t batch,
             ConvolutionPhase phase, cudnnDataType_t result, const ConvolutionMemory& memory) {
  Line line = Line::object();
  try {
    const CudnnConvolution convolution(library, shape, batch, phase, result);
    int timed = 0;
    std::string problem = "nothing is proposed";
    for (int64_t i = 0; i < std::min(convolution.proposals(), kMostProposals); ++i) {
      if (timed >= kTimedPlans && line.contains("deterministic_us")) break;
      try {
        const auto plan = convolution.plan(i);
        if (plan.workspace_bytes > kMostWorkspaceBytes) continue;
        if (timed >= kTimedPlans && !plan.deterministic) continue;
        const double us = 1e3 * bench.milliseconds([&] {
          convolution.run(plan, memory.x, memory.w, memory.y, memory.workspace);
        });
        ++timed;
        keep_least(line, "us", us);
        if (plan.deterministic) keep_least(line, "deterministic_us", us);
      } catch (const DeviceError& error) {
        problem = error.what();
      }
    }
    if (timed == 0) line["why"] = problem;
  } catch (const DeviceError& error) {  // nothing of the kind is supported
    line["why"] = error.what();
  }
  return line;
}

int run(std::vector<std::string> words) {
  const bool tiny = std::erase(words, "--tiny") > 0;
  if (const device::GpuProbe found = device::probe_gpus(); found.devices.empty()) {
    fmt::print(stderr, "cudnn_probe: {}\n", found.problem);
    return 77;
  }
  Bench bench(tiny);
  std::unique_ptr<Cudnn> library;
  try {
    library = std::make_unique<Cudnn>(static_cast<cudaStream_t>(bench.stream().native()));
  } catch (const DeviceError& error) {
    fmt::print(stderr, "cudnn_probe: {}\n", error.what());
    return 77;
  }
  print_line({{"device", bench.device().description()}, {"library", library->version()}});
  const int64_t batch = tiny ? 1 : kProbedBatch;
  for (const ProbedConvolution& shape : kResNet50) {
    const ProbedConvolution c = tiny ? shrunk(shape) : shape;
    const ConvolutionMemory memory(bench, c, batch);
    const auto measured = [&](ConvolutionPhase phase, cudnnDataType_t result) {
      return measure(bench, *library, c, batch, phase, result, memory);
    };
    Line line{{"name", shape.name()}, {"forward", measured(ConvolutionPhase::forward, CUDNN_DATA_BFLOAT16)}};
    if (shape.channels > 3)
      line["input_gradient"] = measured(ConvolutionPhase::input_gradient, CUDNN_DATA_BFLOAT16);
    line["weight_gradient"] = measured(ConvolutionPhase::weight_gradient, CUDNN_DATA_BFLOAT16);
    line["float32_weight_gradient"] = measured(ConvolutionPhase::weight_gradient, CUDNN_DATA_FLOAT);
    print_line(line);
    bench.release();
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::ops

int main(int argc, char** argv) {
  try {
    return lockstep::ops::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "cudnn_probe: {}\n", error.what());
    return 2;
  }
}
