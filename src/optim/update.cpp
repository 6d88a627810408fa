#include <algorithm>

#include "base/ensure.h"
#include "base/ranges.h"
#include "optim/formulas.h"
#include "optim/loops/loops.h"
#include "optim/optimizer.h"
#include "tensor/convert.h"

namespace lockstep::optim {
namespace {

/// Elements that a thread takes at once: some 50 us, beside which starting one (20 us) still pays.
constexpr int64_t kRange = 64 << 10;
/// Elements whose copies are made together: they are still in the first cache.
constexpr int64_t kCopied = 1 << 10;

UpdateElements elements_of(const UpdateArguments& arguments, int64_t begin, int64_t end) {
  const auto from = [begin](float* list) { return list == nullptr ? nullptr : list + begin; };
  UpdateElements elements{.parameters = arguments.parameters + begin,
                          .gradients = arguments.gradients + begin,
                          .state = {},
                          .count = end - begin};
  for (int slot = 0; slot < kMostStateSlots; ++slot) elements.state[slot] = from(arguments.state[slot]);
  return elements;
}

template <class Formula, int slots>
void apply(const OptimizerOptions& options, const UpdateArguments& arguments,
           const UpdateConstants& constants, device::Stream& stream, int threads) {
  update_loops();  // where it may throw
  stream.launch([options, arguments, constants = &constants, threads] {
    const Formula formula(options, arguments, *constants);
    for_ranges(arguments.count, kRange, threads, [&](int64_t begin, int64_t end) {
      const auto update = [&](int64_t first, int64_t last) {
        update_loops().update<Formula, slots>(formula, elements_of(arguments, first, last));
      };
      if (arguments.copy.data == nullptr) return update(begin, end);
      for (int64_t at = begin; at < end; at += kCopied) {
        const int64_t to = std::min(at + kCopied, end);
        update(at, to);
        arguments.copy.from(at).write(arguments.parameters + at, to - at);
      }
    });
  });
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
  visit_formula(options, [&]<class Formula, int slots> {
    apply<Formula, slots>(options, arguments, constants, stream, threads);
  });
}

void make_direction(const OptimizerOptions& options, const UpdateArguments& arguments,
                    const UpdateConstants& constants, device::Stream& stream, int threads) {
  apply<MuonDirection, 1>(options, arguments, constants, stream, threads);
}

void follow_direction(const OptimizerOptions& options, const UpdateArguments& arguments,
                      const UpdateConstants& constants, device::Stream& stream, int threads) {
  visit_matrix_formula(options, [&]<class Formula, int slots> {
    apply<Formula, slots>(options, arguments, constants, stream, threads);
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
    update_loops().statistic(formula, values, gradients, count);
    if (copy.data != nullptr) copy.write(values, count);
  });
}

}  // namespace lockstep::optim
