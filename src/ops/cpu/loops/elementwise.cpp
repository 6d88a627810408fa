#include "ops/cpu/loops/elementwise.h"

#include "ops/cpu/loops/rows.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {
namespace {

/// Calls work(i) for whole vectors of [0, count), a loop that the compiler vectorises without a scalar rest;
/// returns where they end.
template <class Work>
[[gnu::always_inline]] inline int64_t for_whole(int64_t count, const Work& work) {
  const int64_t whole = count & -kLanes;
  for (int64_t i = 0; i < whole; ++i) work(i);
  return whole;
}

/// The same formula for all elements: those behind the last whole vector are computed in one of their own.
template <class Formula>
void forward_of(float* __restrict to, const float* __restrict from, int64_t count) {
  const int64_t done = for_whole(count, [=](int64_t i) { to[i] = Formula::forward(from[i]); });
  if (done == count) return;
  float values[kLanes], results[kLanes];
  store(values, load_first(from + done, count - done, 0.0f));
  for_whole(kLanes, [&](int64_t i) { results[i] = Formula::forward(values[i]); });
  store_first(to + done, count - done, load(results));
}

template <class Formula>
void backward_of(float* __restrict to, const float* __restrict gradient, const float* __restrict value,
                 int64_t count) {
  const int64_t done = for_whole(count, [=](int64_t i) { to[i] = Formula::backward(gradient[i], value[i]); });
  if (done == count) return;
  float gradients[kLanes], values[kLanes], results[kLanes];
  store(gradients, load_first(gradient + done, count - done, 0.0f));
  store(values, load_first(value + done, count - done, 0.0f));
  for_whole(kLanes, [&](int64_t i) { results[i] = Formula::backward(gradients[i], values[i]); });
  store_first(to + done, count - done, load(results));
}

template <class Formula>
constexpr ElementwiseLoops kLoopsOf{forward_of<Formula>, backward_of<Formula>};

}  // namespace

const ElementwiseLoops kReluLoops = kLoopsOf<ReluFormula>, kGeluLoops = kLoopsOf<GeluFormula>,
                       kGeluErfLoops = kLoopsOf<GeluErfFormula>, kSiluLoops = kLoopsOf<SiluFormula>,
                       kSigmoidLoops = kLoopsOf<SigmoidFormula>, kTanhLoops = kLoopsOf<TanhFormula>;

void relu_backward_of_two(float* __restrict to, const float* __restrict gradient,
                          const float* __restrict other, const float* __restrict value, int64_t count) {
  const int64_t done =
      for_whole(count, [=](int64_t i) { to[i] = ReluFormula::backward(gradient[i] + other[i], value[i]); });
  for (int64_t i = done; i < count; ++i) to[i] = ReluFormula::backward(gradient[i] + other[i], value[i]);
}

float sum_of_row(const float* row, int64_t count) {
  return row_sum(count, [row](const auto& at) { return at(row, 0.0f); });
}

float largest_of_row(const float* row, int64_t count) { return row_maximum(row, count); }

float exponential_sum(const float* row, int64_t count, float offset) {
  Lanes sum = splat(0.0f);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) sum += exponential(load(row + i) - splat(offset));
  if (i < count) {
    const Lanes last = exponential(load_first(row + i, count - i, 0.0f) - splat(offset));
    sum += keep_first(last, count - i, 0.0f);
  }
  return fold_sum(sum);
}

void scaled_exponentials(float* to, const float* row, int64_t count, float offset, float factor) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    store(to + i, exponential(load(row + i) - splat(offset)) * splat(factor));
  if (i < count)
    store_first(to + i, count - i,
                exponential(load_first(row + i, count - i, 0.0f) - splat(offset)) * splat(factor));
}

void dropout_factors(const DropoutMask& mask, uint32_t first_group, uint32_t sample, int64_t groups,
                     float* __restrict factors) {
  const DropoutMask local =
      mask;  // a copy that the stores below cannot change, or the loop is not vectorised
  for (int64_t group = 0; group < groups; ++group) {
    float four[4];
    local.factors(first_group + static_cast<uint32_t>(group), sample, four);
    for (int i = 0; i < 4; ++i) factors[4 * group + i] = four[i];
  }
}

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
