#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/index.h"
#include "data/transforms/transform.h"
#include "lockstep/error.h"

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
  void apply(const SampleDraws& /*draws*/, const ImageShape& shape, float* pixels,
             std::vector<float>& /*scratch*/) const override {
    const int64_t each = mean_.size() == 1 ? 1 : shape.channels;
    const int64_t groups = shape.count() / each;
    for (int64_t i = 0; i < groups; ++i, pixels += each)
      for (int64_t c = 0; c < each; ++c) pixels[c] = (pixels[c] - nth(mean_, c)) / nth(deviation_, c);
  }

 private:
  std::vector<float> mean_, deviation_;
};

}  // namespace

std::unique_ptr<const Transform> make_transform(const NormalizeOptions& options) {
  return std::make_unique<Normalize>(options);
}

}  // namespace lockstep::data
