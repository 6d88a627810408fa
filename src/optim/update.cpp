#include <algorithm>

#include "base/ensure.h"
#include "base/ranges.h"
#include "optim/formulas.h"
#include "optim/optimizer.h"
#include "tensor/convert.h"

namespace lockstep::optim {
namespace {

// Every element is a function of its own numbers alone, and neither the vectors nor the scalar rest of a loop
// fuse or reorder anything by themselves, so any split of a range gives the same bits.

/// Elements that a thread takes at once: some 50 us, beside which starting one (20 us) still pays.
constexpr int64_t kRange = 64 << 10;
/// Elements whose copies are made together: they are still in the first cache.
constexpr int64_t kCopied = 1 << 10;

template <int slots, class Formula>
void apply(const Formula& formula, const UpdateArguments& arguments, int64_t begin, int64_t end) {
  float* __restrict p = arguments.parameters;
  const float* __restrict g = arguments.gradients;
  float* __restrict s = arguments.state[0];
  float* __restrict t = arguments.state[1];
  float* __restrict u = arguments.state[2];
  for (int64_t i = begin; i < end; ++i)
    if constexpr (slots == 0)
      formula(p[i], g[i]);
    else if constexpr (slots == 1)
      formula(p[i], g[i], s[i]);
    else if constexpr (slots == 2)
      formula(p[i], g[i], s[i], t[i]);
    else
      formula(p[i], g[i], s[i], t[i], u[i]);
}

}  // namespace

void NarrowCopy::write(const float* values, int64_t count) const {
  tensor::convert(data, dtype, values, DType::float32, count);
}

void update(const OptimizerOptions& options, const UpdateArguments& arguments,
            const UpdateConstants& constants, device::Stream& stream, int threads) {
  for (int slot = 0; slot < state_slots(options); ++slot)
    ensure(arguments.state[slot] != nullptr || arguments.count == 0,
           "an optimizer update was given no state");
  stream.launch([options, arguments, constants = &constants, threads] {
    visit_formula(options, [&]<class Formula, int slots> {
      const Formula formula(options, arguments, *constants);
      for_ranges(arguments.count, kRange, threads, [&](int64_t begin, int64_t end) {
        if (arguments.copy.data == nullptr) return apply<slots>(formula, arguments, begin, end);
        for (int64_t at = begin; at < end; at += kCopied) {
          const int64_t to = std::min(at + kCopied, end);
          apply<slots>(formula, arguments, at, to);
          arguments.copy.from(at).write(arguments.parameters + at, to - at);
        }
      });
    });
  });
}

void propose(const LambDirection& formula, const float* __restrict parameters,
             const float* __restrict gradients, float* __restrict mean, float* __restrict square,
             float* __restrict direction, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    direction[i] = formula.propose(parameters[i], gradients[i], mean[i], square[i]);
}

void update_statistic(float* values, const NarrowCopy& copy, const float* gradients, int64_t count,
                      float momentum, double gradient_scale, device::Stream& stream) {
  stream.launch([=, formula = StatisticFormula{momentum, static_cast<float>(gradient_scale)}] {
    float* __restrict to = values;
    for (int64_t i = 0; i < count; ++i) formula(to[i], gradients[i]);
    if (copy.data != nullptr) copy.write(to, count);
  });
}

}  // namespace lockstep::optim
