#include <fmt/format.h>

#include "bench.h"
#include "gpt2.h"
#include "op_run.h"

namespace lockstep::ops {
namespace {

void report_linear(Bench& bench, const GptShape& shape, const GptLinear& linear) {
  Linear op = linear.op;
  op.bias = false;  // whose gradient's kernel would be timed, too
  OpRun run(bench, op, {{Shape({linear.in})}}, {.batch = shape.rows(), .compute = DType::bfloat16});
  const double flops = 2.0 * static_cast<double>(shape.rows() * linear.in * op.units);
  const auto report = [&](std::string_view phase, const auto& call) {
    bench.report_arithmetic(fmt::format("GPT-2 {}", linear.name), "bfloat16", phase, flops, call);
  };
  report("forward", [&] { run.forward(); });
  report("dinput", [&] { run.backward_input(); });
  report("dweight", [&] { run.backward_weight(); });
  bench.release();
}

void report_attention(Bench& bench, const GptShape& shape, float dropout) {
  OpRun run(bench, Attention{.heads = shape.heads, .dropout = dropout}, {shape.qkv()},
            {.batch = shape.samples, .compute = DType::bfloat16});
  const std::string name = dropout > 0 ? "attention, dropout" : "attention";
  bench.report_arithmetic(name, "bfloat16", "forward", shape.attention_flops(), [&] { run.forward(); });
  bench.report_arithmetic(name, "bfloat16", "backward", 2.5 * shape.attention_flops(),
                          [&] { run.backward_input(); });
  bench.release();
}

}  // namespace

void measure_arithmetic(Bench& bench) {
  const GptShape shape = bench.tiny() ? GptShape::tiny() : GptShape{};
  bench.set_product_ceiling(product_flops_per_second(bench));
  for (const GptLinear& linear : shape.linears()) report_linear(bench, shape, linear);
  for (const float dropout : {0.0f, 0.1f}) report_attention(bench, shape, dropout);
}

}  // namespace lockstep::ops
