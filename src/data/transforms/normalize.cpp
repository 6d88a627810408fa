#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/index.h"
#include "data/transforms/transform.h"
#include "lockstep/error.h"
#include "pixels/formulas.h"

namespace lockstep::data {
namespace {

class Normalize : public Transform {
 public:
  explicit Normalize(const NormalizeOptions& options) {
    require(!options.mean.empty() && options.mean.size() == options.deviation.size(),
            fmt::format("normalize: expected as many numbers in mean as in deviation, found {} and {}",
                        options.mean.size(), options.deviation.size()));
    require(std::ranges::all_of(options.mean, [](double mean) { return std::isfinite(mean); }),
            "normalize.mean: expected finite numbers");
    require(std::ranges::all_of(options.deviation, [](double d) { return std::isfinite(d) && d > 0; }),
            "normalize.deviation: expected finite numbers above 0");
    for (const double mean : options.mean) mean_.push_back(static_cast<float>(mean));
    for (const double deviation : options.deviation) deviation_.push_back(static_cast<float>(deviation));
  }
  const char* name() const override { return "normalize"; }
  bool is_random() const override { return false; }
  ImageShape output(const ImageShape& input) const override {
    const auto count = static_cast<int64_t>(mean_.size());
    require(count == 1 || count == input.channels,
            fmt::format("normalize: expected 1 mean, or {}, one for each channel, found {}", input.channels,
                        count));
    return input;
  }
  std::optional<int32_t> step_count(const ImageShape& shape) const override {
    return shape.channels <= kMostChannels ? std::optional(1) : std::nullopt;
  }
  void write_steps(const SampleDraws& /*draws*/, const ImageShape& /*shape*/,
                   pixels::Step* steps) const override {
    steps[0] = {.kind = pixels::StepKind::normalize};
    for (int64_t c = 0; c < kMostChannels; ++c) {
      const int64_t from = std::min<int64_t>(c, std::ssize(mean_) - 1);
      steps[0].value[c] = nth(mean_, from);
      steps[0].value[kMostChannels + c] = nth(deviation_, from);
    }
  }
  void apply(const SampleDraws& /*draws*/, const ImageShape& shape, float* values,
             std::vector<float>& /*scratch*/) const override {
    const int64_t each = mean_.size() == 1 ? 1 : shape.channels;
    const int64_t groups = shape.count() / each;
    for (int64_t i = 0; i < groups; ++i, values += each)
      for (int64_t c = 0; c < each; ++c)
        values[c] = pixels::normalized(values[c], nth(mean_, c), nth(deviation_, c));
  }

 private:
  static constexpr int64_t kMostChannels = 3;  // of a step
  std::vector<float> mean_, deviation_;
};

}  // namespace

std::unique_ptr<const Transform> make_transform(const NormalizeOptions& options) {
  return std::make_unique<Normalize>(options);
}

}  // namespace lockstep::data
