#include "lockstep/error.h"
#include "optim/formulas.h"
#include "optim/optimizer.h"

namespace lockstep::optim {
namespace {

// Every element is a function of its own numbers alone, and neither the vectors nor the scalar rest of a loop
// fuse or reorder anything by themselves, so any split of a range gives the same bits.

void apply(const SgdFormula& formula, float* __restrict p, const float* __restrict g, int64_t count) {
  for (int64_t i = 0; i < count; ++i) formula(p[i], g[i]);
}

void apply(const SgdFormula& formula, float* __restrict p, const float* __restrict g,
           float* __restrict buffer, int64_t count) {
  for (int64_t i = 0; i < count; ++i) formula(p[i], g[i], buffer[i]);
}

void apply(const AdamFormula& formula, float* __restrict p, const float* __restrict g, float* __restrict mean,
           float* __restrict square, int64_t count) {
  for (int64_t i = 0; i < count; ++i) formula(p[i], g[i], mean[i], square[i]);
}

}  // namespace

void update(const OptimizerOptions& options, const UpdateArguments& arguments,
            const UpdateConstants& constants, device::Stream& stream) {
  for (int slot = 0; slot < state_slots(options); ++slot)
    ensure(arguments.state[slot] != nullptr || arguments.count == 0,
           "an optimizer update was given no state");
  stream.launch([options, arguments, constants = &constants] {
    const UpdateArguments& a = arguments;
    if (options.kind != OptimizerKind::sgd)
      apply(AdamFormula(options, a, *constants), a.parameters, a.gradients, a.state[0], a.state[1], a.count);
    else if (options.momentum != 0)
      apply(SgdFormula(options, a, *constants), a.parameters, a.gradients, a.state[0], a.count);
    else
      apply(SgdFormula(options, a, *constants), a.parameters, a.gradients, a.count);
  });
}

void update_statistic(float* values, const float* gradients, int64_t count, float momentum,
                      double gradient_scale, device::Stream& stream) {
  stream.launch([=, formula = StatisticFormula{momentum, static_cast<float>(gradient_scale)}] {
    float* __restrict to = values;
    for (int64_t i = 0; i < count; ++i) formula(to[i], gradients[i]);
  });
}

}  // namespace lockstep::optim
