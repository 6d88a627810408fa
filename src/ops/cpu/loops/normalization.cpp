#include "ops/cpu/loops/normalization.h"

#include "ops/cpu/loops/rows.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {
namespace {

/// Calls work(load, store) for each vector of a row: load(row) gives its elements there, 0 behind the row's
/// end, and store(row, lanes) writes those that the row has.
template <class Work>
[[gnu::always_inline]] inline void for_row(int64_t count, const Work& work) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    work([i](const float* row) { return load(row + i); },
         [i](float* row, const Lanes& lanes) { store(row + i, lanes); });
  if (i < count)
    work([=](const float* row) { return load_first(row + i, count - i, 0.0f); },
         [=](float* row, const Lanes& lanes) { store_first(row + i, count - i, lanes); });
}

void moments(const float* x, int64_t channels, float* mean, float* variance) {
  const float share = 1.0f / static_cast<float>(channels);
  const float middle = row_sum(channels, [x](const auto& at) { return at(x, 0.0f); }) * share;
  *mean = middle;
  *variance = row_sum(channels,
                      [=](const auto& at) {
                        const Lanes deviation = at(x, middle) - splat(middle);
                        return deviation * deviation;
                      }) *
              share;
}

void mean_square(const float* x, int64_t channels, float* mean, float* variance) {
  *mean = 0.0f;
  *variance = row_sum(channels,
                      [x](const auto& at) {
                        const Lanes value = at(x, 0.0f);
                        return value * value;
                      }) *
              (1.0f / static_cast<float>(channels));
}

void normalize(float* y, const float* x, const LayerNormRow& row, int64_t channels) {
  const Lanes mean = splat(row.mean), inverse = splat(row.inverse_deviation);
  if (row.bias != nullptr)
    for_row(channels, [&](const auto& at, const auto& to) {
      to(y, fused((at(x) - mean) * inverse, at(row.weight), at(row.bias)));
    });
  else
    for_row(channels,
            [&](const auto& at, const auto& to) { to(y, (at(x) - mean) * inverse * at(row.weight)); });
}

template <bool kCentered>
void input_gradient(float* dx, const float* dy, const float* x, const LayerNormRow& row, int64_t channels) {
  const float *weight = row.weight, share = 1.0f / static_cast<float>(channels);
  const Lanes mean = splat(row.mean), inverse = splat(row.inverse_deviation);
  const float mean_g =
      kCentered ? row_sum(channels, [=](const auto& at) { return at(dy, 0.0f) * at(weight, 0.0f); }) * share
                : 0.0f;
  const float mean_gn = row_sum(channels,
                                [=](const auto& at) {
                                  return at(dy, 0.0f) * at(weight, 0.0f) * ((at(x, 0.0f) - mean) * inverse);
                                }) *
                        share;
  for_row(channels, [&](const auto& at, const auto& to) {
    const Lanes normalized = (at(x) - mean) * inverse;
    to(dx, inverse * fused(normalized, splat(-mean_gn), at(dy) * at(weight) - splat(mean_g)));
  });
}

void add_parameter_gradients(float* weight_sums, float* bias_sums, const float* dy, const float* x,
                             const LayerNormRow& row, int64_t channels) {
  const Lanes mean = splat(row.mean), inverse = splat(row.inverse_deviation);
  for_row(channels, [&](const auto& at, const auto& to) {
    const Lanes gradient = at(dy);
    to(weight_sums, fused(gradient, (at(x) - mean) * inverse, at(weight_sums)));
    to(bias_sums, at(bias_sums) + gradient);
  });
}

}  // namespace

const LayerNormLoops kLayerNormLoops{
    .moments = moments,
    .normalize = normalize,
    .input_gradient = input_gradient<true>,
    .add_parameter_gradients = add_parameter_gradients,
};

const LayerNormLoops kRmsNormLoops{
    .moments = mean_square,
    .normalize = normalize,
    .input_gradient = input_gradient<false>,
    .add_parameter_gradients = add_parameter_gradients,
};

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
