#include "ops/cpu/convolution_gathering.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace lockstep::ops {

Gathering::Gathering(const ConvolutionSizes& sizes)
    : sizes_(sizes),
      place_step_(sizes.stride / std::gcd(sizes.stride, sizes.dilation)),
      pixel_step_(sizes.dilation / std::gcd(sizes.stride, sizes.dilation)) {
  std::vector<int64_t> columns;
  for (int64_t x = 0; x < std::min(sizes.stride, sizes.width); ++x)
    if (places(x) > 0) columns.push_back(x);
  int64_t covered = 0;
  for (int64_t y = 0; y < std::min(sizes.stride, sizes.height); ++y)
    for (const int64_t x : columns) {
      if (places(y) == 0) break;
      classes_.push_back({.first_y = y,
                          .first_x = x,
                          .kernel_y = last_place(y),
                          .kernel_x = last_place(x),
                          .rows = places(y),
                          .columns = places(x),
                          .height = divided_up(sizes.height - y, sizes.stride),
                          .width = divided_up(sizes.width - x, sizes.stride),
                          .begin_y = begin(y),
                          .begin_x = begin(x)});
      covered += classes_.back().height * classes_.back().width;
    }
  covers_all_pixels_ = covered == sizes.height * sizes.width;
}

/// The kernel's size if the pixel takes part in no place.
int64_t Gathering::first_place(int64_t pixel) const {
  const int64_t rest = (pixel + sizes_.padding) % sizes_.stride;
  for (int64_t place = 0; place < std::min(place_step_, sizes_.kernel); ++place)
    if (place * sizes_.dilation % sizes_.stride == rest) return place;
  return sizes_.kernel;
}

int64_t Gathering::places(int64_t pixel) const {
  return divided_up(sizes_.kernel - first_place(pixel), place_step_);
}

int64_t Gathering::last_place(int64_t pixel) const {
  return first_place(pixel) + (places(pixel) - 1) * place_step_;
}

int64_t Gathering::begin(int64_t pixel) const {
  return (pixel + sizes_.padding - last_place(pixel) * sizes_.dilation) / sizes_.stride + lead();
}

int64_t Gathering::lead() const { return (sizes_.extent() - 1) / sizes_.stride; }

int64_t Gathering::padded_size(int64_t out, int64_t pixels) const {
  return lead() + std::max(out, (pixels - 1 + sizes_.padding) / sizes_.stride + 1);
}

int64_t Gathering::padded_row() const { return padded_size(sizes_.out_width, sizes_.width) * sizes_.units; }

int64_t Gathering::padded_floats() const {
  return whole_line(padded_size(sizes_.out_height, sizes_.height) * padded_row());
}

void Gathering::pad(int64_t images, const float* dy, float* padded) const {
  std::fill_n(padded, images * padded_floats(), 0.0f);
  fill(images, dy, padded);
}

void Gathering::fill(int64_t images, const float* dy, float* padded) const {
  for (int64_t image = 0; image < images; ++image)
    for (int64_t y = 0; y < sizes_.out_height; ++y)
      std::memcpy(padded + image * padded_floats() + (y + lead()) * padded_row() + lead() * sizes_.units,
                  dy + (image * sizes_.pixels() + y * sizes_.out_width) * sizes_.units,
                  static_cast<size_t>(sizes_.out_width * sizes_.units * kNumberBytes));
}

}  // namespace lockstep::ops
