#include <string>

#include "../benchmark/op_run.h"
#include "probe.h"
#include "resnet50.h"

namespace lockstep::ops {
namespace {

constexpr int64_t kLargeColumns = int64_t{64} << 20;

}  // namespace

bool probe_convolutions(Bench& bench) {
  const int64_t batch = bench.tiny() ? 1 : kProbedBatch;
  bool worked = true;
  for (const ProbedConvolution& shape : kResNet50) {
    const ProbedConvolution c = bench.tiny() ? shrunk(shape) : shape;
    const Line line{{"name", shape.name()}, {"count", c.count}, {"flops", c.flops(batch)}};
    worked &= print_measured(line, [&](Line& measured) {
      const Conv2d op{.channels = c.out_channels,
                      .kernel = c.kernel,
                      .stride = c.stride,
                      .padding = c.padding(),
                      .bias = false};
      // As lockstep takes them, and with columns that no cache holds, which make larger products.
      for (const int64_t column_bytes : {int64_t{0}, kLargeColumns}) {
        const std::string suffix = column_bytes == 0 ? "_us" : "_by_64_mib_us";
        OpRun run(bench, op, {{Shape({c.side, c.side, c.channels})}},
                  {.batch = batch, .compute = DType::bfloat16, .column_bytes = column_bytes});
        measured["forward" + suffix] = 1e3 * bench.milliseconds([&] { run.forward(); });
        if (shape.channels > 3)  // a first convolution's input needs no gradient
          measured["input_gradient" + suffix] = 1e3 * bench.milliseconds([&] { run.backward_input(); });
        measured["weight_gradient" + suffix] = 1e3 * bench.milliseconds([&] { run.backward_weight(); });
        bench.release();
      }
    });
  }
  return worked;
}

}  // namespace lockstep::ops
