#include "data/transforms/resample.h"

#include <algorithm>
#include <cmath>

#include "base/index.h"

namespace lockstep::data {
namespace {

double filter_support(ResizeFilter filter) { return filter == ResizeFilter::bicubic ? 2 : 1; }

/// Triangle, or Keys' cubic with a = -0.5.
double filter_value(ResizeFilter filter, double x) {
  x = std::abs(x);
  if (filter == ResizeFilter::bilinear) return x < 1 ? 1 - x : 0;
  constexpr double a = -0.5;
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

/// Sums of whole rows: row[i] = sum of weights[k] * rows[k][i]. Sums begin with the first row.
template <class T>
void sum_rows(const T* rows, int64_t stride, const float* weights, int64_t count, float scale, int64_t length,
              float* row) {
  for (int64_t k = 0; k < count; ++k, rows += stride) {
    const float weight = weights[k] * scale;
    if (k == 0)
      for (int64_t i = 0; i < length; ++i) row[i] = weight * static_cast<float>(rows[i]);
    else
      for (int64_t i = 0; i < length; ++i) row[i] += weight * static_cast<float>(rows[i]);
  }
}

template <int64_t channels>
void sum_columns(const float* row, const Taps& taps, float* out) {
  const auto outputs = static_cast<int64_t>(taps.first.size());
  for (int64_t x = 0; x < outputs; ++x, out += channels) {
    const int64_t begin = nth(taps.offset, x), count = nth(taps.offset, x + 1) - begin;
    const float* from = row + (nth(taps.first, x) - taps.begin) * channels;
    const float* weights = taps.weights.data() + begin;
    float sum[channels] = {};
    for (int64_t k = 0; k < count; ++k, from += channels)
      for (int64_t c = 0; c < channels; ++c) sum[c] += weights[k] * from[c];
    for (int64_t c = 0; c < channels; ++c) out[c] = sum[c];
  }
}

void sum_columns(const float* row, const Taps& taps, int64_t channels, float* out) {
  if (channels == 1) return sum_columns<1>(row, taps, out);
  if (channels == 3) return sum_columns<3>(row, taps, out);
  const auto outputs = static_cast<int64_t>(taps.first.size());
  for (int64_t x = 0; x < outputs; ++x)
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t begin = nth(taps.offset, x), count = nth(taps.offset, x + 1) - begin;
      float sum = 0;
      for (int64_t k = 0; k < count; ++k)
        sum += nth(taps.weights, begin + k) * row[(nth(taps.first, x) - taps.begin + k) * channels + c];
      out[x * channels + c] = sum;
    }
}

}  // namespace

std::string ImageShape::to_string() const {
  return std::to_string(height) + "x" + std::to_string(width) + "x" + std::to_string(channels);
}

Window Window::of(const Region& box, int64_t height, int64_t width, ResizeFilter filter) {
  return {.y = static_cast<double>(box.y),
          .x = static_cast<double>(box.x),
          .box_height = static_cast<double>(box.height),
          .box_width = static_cast<double>(box.width),
          .height = height,
          .width = width,
          .part = {0, 0, height, width},
          .filter = filter};
}

Window Window::keep(const Region& inner) const {
  Window kept = *this;
  kept.part = {part.y + inner.y, part.x + inner.x, inner.height, inner.width};
  return kept;
}

bool Window::is_crop() const {
  return box_height == static_cast<double>(height) && box_width == static_cast<double>(width) &&
         y == std::floor(y) && x == std::floor(x);
}

void make_taps(double box, double length, int64_t outputs, int64_t first, int64_t count, ResizeFilter filter,
               Taps& taps) {
  const double scale = length / static_cast<double>(outputs), widened = std::max(scale, 1.0);
  const double support = filter_support(filter) * widened;
  const auto lowest = static_cast<int64_t>(std::floor(box));
  const auto highest = static_cast<int64_t>(std::ceil(box + length));
  taps.first.clear();
  taps.offset.assign(1, 0);
  taps.weights.clear();
  taps.begin = highest;
  taps.end = lowest;
  for (int64_t i = first; i < first + count; ++i) {
    const double center = box + (static_cast<double>(i) + 0.5) * scale;
    auto begin = std::max(lowest, static_cast<int64_t>(std::floor(center - support + 0.5)));
    auto end = std::min(highest, static_cast<int64_t>(std::floor(center + support + 0.5)));
    const auto weight = [&](int64_t pixel) {
      return filter_value(filter, (static_cast<double>(pixel) - center + 0.5) / widened);
    };
    while (end - begin > 1 && weight(begin) == 0) ++begin;
    while (end - begin > 1 && weight(end - 1) == 0) --end;
    double sum = 0;
    for (int64_t pixel = begin; pixel < end; ++pixel) sum += weight(pixel);
    for (int64_t pixel = begin; pixel < end; ++pixel)
      taps.weights.push_back(static_cast<float>(weight(pixel) / sum));
    taps.first.push_back(begin);
    taps.offset.push_back(static_cast<int64_t>(taps.weights.size()));
    taps.begin = std::min(taps.begin, begin);
    taps.end = std::max(taps.end, end);
  }
}

void resample(PixelSource& source, const Window& window, float* out, ResampleScratch& scratch) {
  const double shrinks = std::min(window.box_height / static_cast<double>(window.height),
                                  window.box_width / static_cast<double>(window.width));
  const int64_t reduction = shrinks < 2 ? 1 : source.reduction(static_cast<int64_t>(shrinks));
  const double scale = 1.0 / static_cast<double>(reduction);
  make_taps(window.y * scale, window.box_height * scale, window.height, window.part.y, window.part.height,
            window.filter, scratch.rows);
  make_taps(window.x * scale, window.box_width * scale, window.width, window.part.x, window.part.width,
            window.filter, scratch.columns);
  const Taps &rows = scratch.rows, &columns = scratch.columns;
  const PixelView pixels =
      source.read({rows.begin, columns.begin, rows.end - rows.begin, columns.end - columns.begin}, reduction);
  const int64_t channels = pixels.shape.channels, stride = pixels.shape.width * channels;
  scratch.row.resize(static_cast<size_t>(stride));
  for (int64_t y = 0; y < window.part.height; ++y) {
    const float* weights = rows.weights.data() + nth(rows.offset, y);
    const int64_t count = nth(rows.offset, y + 1) - nth(rows.offset, y);
    const int64_t begin = (nth(rows.first, y) - rows.begin) * stride;
    if (pixels.bytes != nullptr)
      sum_rows(pixels.bytes + begin, stride, weights, count, 1.0f / 255, stride, scratch.row.data());
    else
      sum_rows(pixels.floats + begin, stride, weights, count, 1.0f, stride, scratch.row.data());
    sum_columns(scratch.row.data(), columns, channels, out + y * window.part.width * channels);
  }
}

}  // namespace lockstep::data
