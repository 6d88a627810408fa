#include <fmt/format.h>

#include <algorithm>

#include "data/transforms/random_box.h"
#include "data/transforms/transform.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

class Erase : public Transform {
 public:
  explicit Erase(const EraseOptions& options) : options_(options) {
    require(options.probability >= 0 && options.probability <= 1,
            fmt::format("erase.probability: expected from 0 to 1, found {}", options.probability));
    require_box_limits(name(), options.area_min, options.area_max, options.aspect_min, options.aspect_max);
  }
  const char* name() const override { return "erase"; }
  bool is_random() const override { return true; }
  void apply(const SampleDraws& draws, const ImageShape& shape, float* pixels,
             std::vector<float>& /*scratch*/) const override {
    constexpr uint32_t kWhether = 40;  // behind the numbers of the box
    if (!draws.chance(kWhether, options_.probability)) return;
    const auto box = draw_box(draws, shape, options_.area_min, options_.area_max, options_.aspect_min,
                              options_.aspect_max);
    if (!box) return;
    for (int64_t y = box->y; y < box->y + box->height; ++y)
      std::fill_n(pixels + (y * shape.width + box->x) * shape.channels, box->width * shape.channels,
                  static_cast<float>(options_.value));
  }

 private:
  EraseOptions options_;
};

}  // namespace

std::unique_ptr<const Transform> make_transform(const EraseOptions& options) {
  return std::make_unique<Erase>(options);
}

}  // namespace lockstep::data
