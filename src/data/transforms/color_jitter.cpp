#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "data/transforms/transform.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

void require_colors(const char* transform, const ImageShape& input) {
  require(input.channels == 1 || input.channels == 3,
          fmt::format("{}: expected images of 1 or 3 channels, found {}", transform, input.channels));
}

class ColorJitter : public Transform {
 public:
  explicit ColorJitter(const ColorJitterOptions& options) : options_(options) {
    require(
        options.brightness >= 0 && options.contrast >= 0 && options.saturation >= 0,
        fmt::format("color_jitter: expected brightness, contrast and saturation of at least 0, found {}, {} "
                    "and {}",
                    options.brightness, options.contrast, options.saturation));
    require(options.hue >= 0 && options.hue <= 0.5,
            fmt::format("color_jitter.hue: expected from 0 to 0.5 turns, found {}", options.hue));
  }
  const char* name() const override { return "color_jitter"; }
  bool is_random() const override { return true; }
  ImageShape output(const ImageShape& input) const override {
    require_colors(name(), input);
    return input;
  }
  std::optional<int32_t> step_count(const ImageShape& /*shape*/) const override { return kMostSteps; }
  bool sums() const override { return options_.contrast > 0; }
  void write_steps(const SampleDraws& draws, const ImageShape& /*shape*/,
                   pixels::Step* steps) const override {
    for (const int what : order(draws)) *steps++ = step_of(what, draws);
  }

 private:
  static std::array<int, 4> order(const SampleDraws& draws) {
    std::array<int, 4> order{0, 1, 2, 3};
    for (uint32_t i = 3; i > 0; --i) std::swap(order[i], order[static_cast<size_t>(draws.below(i, i + 1))]);
    return order;
  }

  pixels::Step step_of(int what, const SampleDraws& draws) const {
    constexpr pixels::StepKind kKinds[] = {pixels::StepKind::brightness, pixels::StepKind::contrast,
                                           pixels::StepKind::saturation, pixels::StepKind::hue};
    const double most[] = {options_.brightness, options_.contrast, options_.saturation, options_.hue};
    if (most[what] == 0) return {};
    const double low = what == 3 ? -most[what] : std::max(0.0, 1 - most[what]);
    const double high = what == 3 ? most[what] : 1 + most[what];
    return {.kind = kKinds[what],
            .value = {static_cast<float>(draws.uniform(static_cast<uint32_t>(4 + what), low, high))}};
  }

  ColorJitterOptions options_;
};

class Grayscale : public Transform {
 public:
  explicit Grayscale(const GrayscaleOptions& options) : probability_(options.probability) {
    require(probability_ >= 0 && probability_ <= 1,
            fmt::format("grayscale.probability: expected from 0 to 1, found {}", probability_));
  }
  const char* name() const override { return "grayscale"; }
  bool is_random() const override { return probability_ < 1; }
  ImageShape output(const ImageShape& input) const override {
    require_colors(name(), input);
    return input;
  }
  std::optional<int32_t> step_count(const ImageShape& /*shape*/) const override { return 1; }
  void write_steps(const SampleDraws& draws, const ImageShape& /*shape*/,
                   pixels::Step* steps) const override {
    steps[0] = {.kind = draws.chance(0, probability_) ? pixels::StepKind::gray : pixels::StepKind::none};
  }

 private:
  double probability_;
};

}  // namespace

std::unique_ptr<const Transform> make_transform(const ColorJitterOptions& options) {
  return std::make_unique<ColorJitter>(options);
}

std::unique_ptr<const Transform> make_transform(const GrayscaleOptions& options) {
  return std::make_unique<Grayscale>(options);
}

}  // namespace lockstep::data
