#include "run/step_kernels.h"

#include "bench.h"

namespace lockstep::ops {

void measure_step_kernels(Bench& bench) {
  const int64_t count = bench.tiny() ? 4 * layout::kNormChunk : int64_t{1} << 26;  // 256 MiB of float32
  const auto kernels = run::make_step_kernels(device::DeviceKind::cuda);
  const auto floats = [&] { return bench.make({Shape({count})}).as<float>(); };
  program::Verdict verdict;
  verdict.count = 1;
  run::StepScalars constants;
  constants.update.learning_rate = 1e-6;
  constants.update.beta1_power = 0.9;
  constants.update.beta2_power = 0.999;
  auto* const device_verdict = bench.make_copy(verdict);
  const auto* const device_constants = bench.make_copy(constants);
  float *const a = floats(), *const b = floats(), *const c = floats();
  // Means of squares. Of negative numbers the root is none, which takes longer, and so does all that follows.
  auto* const d = static_cast<float*>(bench.make_bytes(4 * count));
  bench.measure_copy();
  bench.report("add (tree)", "float32", "", 12 * count,
               [&] { kernels->add(a, b, DType::float32, count, bench.stream()); });

  // Of twice as many elements, so that the narrow side is as large as the others.
  const Tensor wide = bench.make({Shape({2 * count})});
  for (const DType type : {DType::bfloat16, DType::float16}) {
    const Tensor narrow = bench.make({Shape({2 * count}), type});
    bench.report("cast to", name_of(type), "", 12 * count, [&] {
      kernels->cast(narrow.data, type, wide.data, DType::float32, 2 * count, bench.stream());
    });
    bench.report("cast from", name_of(type), "", 12 * count, [&] {
      kernels->cast(wide.data, DType::float32, narrow.data, type, 2 * count, bench.stream());
    });
  }

  const int64_t chunks = count / layout::kNormChunk;
  const run::NormCall norm{.pieces = {{b, count, 0}},
                           .weight_chunks = chunks,
                           .chunks = chunks,
                           .sums = static_cast<double*>(bench.make_bytes(chunks * 8)),
                           .verdict = device_verdict,
                           .constants = device_constants};
  bench.report("norm", "float32", "", 4 * count, [&] {
    kernels->sum_squares(norm, bench.stream());
    kernels->conclude_norm(norm, bench.stream());
  });

  const auto update = [&](std::string_view name, const optim::OptimizerOptions& optimizer,
                          bool is_statistic) {
    const int slots = is_statistic ? 0 : optim::state_slots(optimizer);
    const run::UpdateCall call{
        .pieces = {{0, count, {.weight_decay = optimizer.weight_decay}, is_statistic, 0.1f}},
        .optimizer = optimizer,
        .parameters = a,
        .gradients = b,
        .state = {slots > 0 ? c : nullptr, slots > 1 ? d : nullptr},
        .verdict = device_verdict,
        .constants = device_constants,
        .whole_step = true,
        .predicated = true};
    // Reads and writes the parameters and each state, reads the gradients.
    bench.report(name, "float32", "", (12 + 8 * slots) * count,
                 [&] { kernels->update(call, bench.stream()); });
  };
  update("update, SGD", {.kind = optim::OptimizerKind::sgd}, false);
  update("update, SGD with momentum", {.kind = optim::OptimizerKind::sgd, .momentum = 0.9}, false);
  update("update, Adam", {.kind = optim::OptimizerKind::adam}, false);
  update("update, AdamW", {.kind = optim::OptimizerKind::adamw, .weight_decay = 0.1}, false);
  update("update of a statistic", {.kind = optim::OptimizerKind::sgd}, true);
  bench.release();
}

}  // namespace lockstep::ops
