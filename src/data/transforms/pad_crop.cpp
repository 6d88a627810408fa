#include <fmt/format.h>

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
  std::optional<int32_t> step_count(const ImageShape& /*shape*/) const override { return 1; }
  void write_steps(const SampleDraws& draws, const ImageShape& /*shape*/,
                   pixels::Step* steps) const override {
    // Where the part begins, compared with the image inside the padding.
    const int64_t dy = draws.below(0, 2 * padding_ + 1) - padding_;
    const int64_t dx = draws.below(1, 2 * padding_ + 1) - padding_;
    steps[0] = {.kind = pixels::StepKind::shift,
                .place = {static_cast<int32_t>(dy), static_cast<int32_t>(dx)},
                .value = {value_}};
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
