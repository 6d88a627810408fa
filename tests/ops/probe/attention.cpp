#include "../benchmark/gpt2.h"
#include "../benchmark/op_run.h"
#include "probe.h"

namespace lockstep::ops {

bool probe_attention(Bench& bench) {
  const GptShape shape = bench.tiny() ? GptShape::tiny() : GptShape{};
  bool worked = true;
  for (const float dropout : {0.0f, 0.1f}) {
    const Line line{{"batch", shape.samples},
                    {"heads", shape.heads},
                    {"positions", shape.positions},
                    {"head_size", shape.head_size},
                    {"dropout", dropout > 0 ? 0.1 : 0.0}};
    worked &= print_measured(line, [&](Line& measured) {
      OpRun run(bench, Attention{.heads = shape.heads, .dropout = dropout}, {shape.qkv()},
                {.batch = shape.samples, .compute = DType::bfloat16});
      measured["forward_flops"] = shape.attention_flops();
      measured["forward_us"] = 1e3 * bench.milliseconds([&] { run.forward(); });
      measured["backward_us"] = 1e3 * bench.milliseconds([&] { run.backward_input(); });
    });
    bench.release();
  }
  return worked;
}

}  // namespace lockstep::ops
