#include "ops/cpu/loops/channels.h"

#include "ops/cpu/loops/loops.h"
#include "ops/cpu/loops/store_columns.h"
#include "ops/cpu/loops/tile_rows.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {
namespace {

/// (A copy of the register, which may then lie in memory.)
[[gnu::always_inline]] inline void store_first_columns(float* to, Register value, int64_t count) {
  store_columns(to, reinterpret_cast<const float*>(&value), count);
}

/// A register of channels of kPixels pixels from `pixel` on: one factor is read for all of them.
template <int64_t kPixels, bool kIsChain>
[[gnu::noinline]] void product_tile(const ChannelProduct& product, int64_t pixel, int64_t channel) {
  const ChannelWindows& windows = product.windows;
  const float* image = windows.image + pixel * windows.image_step + channel;
  const float* weight = product.weight + channel;
  Register sums[kPixels];
#pragma GCC unroll 12
  for (int64_t i = 0; i < kPixels; ++i) sums[i] = Register{};
  for (int64_t place = 0; place < windows.places; ++place, weight += product.weight_step) {
    const Register factor = load_register(weight);
    const float* from = image + windows.offsets[place];
#pragma GCC unroll 12
    for (int64_t i = 0; i < kPixels; ++i) {
      const Register value = load_register(from + i * windows.image_step);
      sums[i] = kIsChain ? fused(value, factor, sums[i]) : sums[i] + fused(value, factor, Register{});
    }
  }
  const Register bias = product.bias != nullptr ? load_register(product.bias + channel) : Register{};
  float* to = product.result + pixel * product.result_step + channel;
  const int64_t left = windows.channels - channel;
#pragma GCC unroll 12
  for (int64_t i = 0; i < kPixels; ++i, to += product.result_step) {
    if (product.bias != nullptr) sums[i] += bias;
    if (left >= kRegisterLanes)
      store_register(to, sums[i]);
    else
      store_first_columns(to, sums[i], left);
  }
}

template <int64_t kPixels, bool kIsChain>
void product_pixels(int64_t pixels, const ChannelProduct& product, int64_t pixel, int64_t channel) {
  if (pixels >= kPixels)
    product_tile<kPixels, kIsChain>(product, pixel, channel);
  else if constexpr (kPixels > 1)
    product_pixels<kPixels - 1, kIsChain>(pixels, product, pixel, channel);
}

/// Sums of so many places stay in registers while pixels go by.
constexpr int64_t kPlaces = 2 * kTileRows > 12 ? 12 : 2 * kTileRows;

template <int64_t kCount>
[[gnu::noinline]] void fold_tile(const ChannelFold& fold, int64_t place, int64_t channel) {
  const ChannelWindows& windows = fold.windows;
  float* to = fold.sums + place * fold.sums_step + channel;
  const float* from[kCount];
  Register sums[kCount];
#pragma GCC unroll 12
  for (int64_t i = 0; i < kCount; ++i) {
    sums[i] = load_register(to + i * fold.sums_step);
    from[i] = windows.image + windows.offsets[place + i] + channel;
  }
  const float* gradient = fold.gradient + channel;
  for (int64_t pixel = 0, at = 0; pixel < windows.pixels; ++pixel, at += windows.image_step) {
    const Register factor = load_register(gradient + pixel * fold.gradient_step);
#pragma GCC unroll 12
    for (int64_t i = 0; i < kCount; ++i) sums[i] = fused(factor, load_register(from[i] + at), sums[i]);
  }
#pragma GCC unroll 12
  for (int64_t i = 0; i < kCount; ++i) store_register(to + i * fold.sums_step, sums[i]);
}

template <int64_t kCount>
void fold_places(int64_t places, const ChannelFold& fold, int64_t place, int64_t channel) {
  if (places >= kCount)
    fold_tile<kCount>(fold, place, channel);
  else if constexpr (kCount > 1)
    fold_places<kCount - 1>(places, fold, place, channel);
}

}  // namespace

void channel_product(const ChannelProduct& product) {
  const ChannelWindows& windows = product.windows;
  for (int64_t pixel = 0; pixel < windows.pixels; pixel += kTileRows)
    for (int64_t channel = 0; channel < windows.channels; channel += kRegisterLanes)
      product.is_chain ? product_pixels<kTileRows, true>(windows.pixels - pixel, product, pixel, channel)
                       : product_pixels<kTileRows, false>(windows.pixels - pixel, product, pixel, channel);
}

void channel_fold(const ChannelFold& fold) {
  const ChannelWindows& windows = fold.windows;
  for (int64_t channel = 0; channel < windows.channels; channel += kRegisterLanes)
    for (int64_t place = 0; place < windows.places; place += kPlaces)
      fold_places<kPlaces>(windows.places - place, fold, place, channel);
}

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
