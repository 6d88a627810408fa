#include <fmt/format.h>

#include <algorithm>

#include "data/transforms/transform.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

class PadCrop : public Transform {
 public:
  explicit PadCrop(const PadCropOptions& options)
      : padding_(options.padding), value_(static_cast<float>(options.value)) {
    require(padding_ >= 1,
            fmt::format("pad_crop.padding: expected at least 1 pixel, found {}", options.padding));
  }
  const char* name() const override { return "pad_crop"; }
  bool is_random() const override { return true; }
  void apply(const SampleDraws& draws, const ImageShape& shape, float* pixels,
             std::vector<float>& scratch) const override {
    scratch.assign(pixels, pixels + shape.count());
    // Where the part begins, compared with the image inside the padding.
    const int64_t dy = draws.below(0, 2 * padding_ + 1) - padding_;
    const int64_t dx = draws.below(1, 2 * padding_ + 1) - padding_;
    const int64_t first = std::clamp<int64_t>(-dx, 0, shape.width);
    const int64_t end = std::clamp<int64_t>(shape.width - dx, first, shape.width);
    const int64_t row = shape.width * shape.channels;
    for (int64_t y = 0; y < shape.height; ++y, pixels += row) {
      const bool inside = y + dy >= 0 && y + dy < shape.height;
      const int64_t begin = inside ? first * shape.channels : row;
      const int64_t rest = inside ? end * shape.channels : row;
      std::fill(pixels, pixels + begin, value_);
      if (inside) {
        const float* from = scratch.data() + (y + dy) * row + dx * shape.channels;
        std::copy(from + begin, from + rest, pixels + begin);
      }
      std::fill(pixels + rest, pixels + row, value_);
    }
  }

 private:
  int64_t padding_;
  float value_;
};

}  // namespace

std::unique_ptr<const Transform> make_transform(const PadCropOptions& options) {
  return std::make_unique<PadCrop>(options);
}

}  // namespace lockstep::data
