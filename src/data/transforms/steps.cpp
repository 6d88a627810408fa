#include <algorithm>
#include <array>

#include "data/transforms/color.h"
#include "data/transforms/transform.h"

namespace lockstep::data {
namespace {

void mirror(const pixels::Step& step, const ImageShape& shape, float* values) {
  const int64_t row = shape.width * shape.channels;
  if (step.place[0] != 0)
    for (int64_t y = 0; y < shape.height; ++y)
      for (int64_t left = 0, right = shape.width - 1; left < right; ++left, --right)
        std::swap_ranges(values + y * row + left * shape.channels,
                         values + y * row + (left + 1) * shape.channels,
                         values + y * row + right * shape.channels);
  if (step.place[1] != 0)
    for (int64_t top = 0, bottom = shape.height - 1; top < bottom; ++top, --bottom)
      std::swap_ranges(values + top * row, values + (top + 1) * row, values + bottom * row);
}

void shift(const pixels::Step& step, const ImageShape& shape, float* values, std::vector<float>& scratch) {
  scratch.assign(values, values + shape.count());
  const int64_t dy = step.place[0], dx = step.place[1];
  const int64_t first = std::clamp<int64_t>(-dx, 0, shape.width);
  const int64_t end = std::clamp<int64_t>(shape.width - dx, first, shape.width);
  const int64_t row = shape.width * shape.channels;
  for (int64_t y = 0; y < shape.height; ++y, values += row) {
    const bool inside = y + dy >= 0 && y + dy < shape.height;
    const int64_t begin = inside ? first * shape.channels : row;
    const int64_t rest = inside ? end * shape.channels : row;
    std::fill(values, values + begin, step.value[0]);
    if (inside) {
      const float* from = scratch.data() + (y + dy) * row + dx * shape.channels;
      std::copy(from + begin, from + rest, values + begin);
    }
    std::fill(values + rest, values + row, step.value[0]);
  }
}

void erase(const pixels::Step& step, const ImageShape& shape, float* values) {
  for (int64_t y = step.place[0]; y < step.place[0] + step.place[2]; ++y)
    std::fill_n(values + (y * shape.width + step.place[1]) * shape.channels, step.place[3] * shape.channels,
                step.value[0]);
}

}  // namespace

void do_step(const pixels::Step& step, const ImageShape& shape, float* values, std::vector<float>& scratch) {
  switch (step.kind) {
    case pixels::StepKind::mirror:
      return mirror(step, shape, values);
    case pixels::StepKind::shift:
      return shift(step, shape, values, scratch);
    case pixels::StepKind::erase:
      return erase(step, shape, values);
    case pixels::StepKind::brightness:
      return adjust_brightness(shape, step.value[0], values);
    case pixels::StepKind::contrast:
      return adjust_contrast(shape, step.value[0], values);
    case pixels::StepKind::saturation:
      return adjust_saturation(shape, step.value[0], values);
    case pixels::StepKind::hue:
      return adjust_hue(shape, step.value[0], values);
    case pixels::StepKind::gray:
      return make_gray(shape, values);
    case pixels::StepKind::none:
    case pixels::StepKind::normalize:  // Normalize does it itself, for any number of channels
    case pixels::StepKind::share:
    case pixels::StepKind::box:
      return;
  }
}

void Transform::apply(const SampleDraws& draws, const ImageShape& shape, float* values,
                      std::vector<float>& scratch) const {
  std::array<pixels::Step, kMostSteps> steps{};
  const int32_t count = step_count(shape).value_or(0);
  write_steps(draws, shape, steps.data());
  for (int32_t i = 0; i < count; ++i) do_step(steps[static_cast<size_t>(i)], shape, values, scratch);
}

}  // namespace lockstep::data
