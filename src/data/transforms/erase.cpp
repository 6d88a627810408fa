#include <fmt/format.h>

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
  std::optional<int32_t> step_count(const ImageShape& /*shape*/) const override { return 1; }
  void write_steps(const SampleDraws& draws, const ImageShape& shape, pixels::Step* steps) const override {
    constexpr uint32_t kWhether = 40;  // behind the numbers of the box
    steps[0] = {};
    if (!draws.chance(kWhether, options_.probability)) return;
    const auto box = draw_box(draws, shape, options_.area_min, options_.area_max, options_.aspect_min,
                              options_.aspect_max);
    if (!box) return;
    steps[0] = {.kind = pixels::StepKind::erase,
                .place = {static_cast<int32_t>(box->y), static_cast<int32_t>(box->x),
                          static_cast<int32_t>(box->height), static_cast<int32_t>(box->width)},
                .value = {static_cast<float>(options_.value)}};
  }

 private:
  EraseOptions options_;
};

}  // namespace

std::unique_ptr<const Transform> make_transform(const EraseOptions& options) {
  return std::make_unique<Erase>(options);
}

}  // namespace lockstep::data
