#include <fmt/format.h>

#include "data/transforms/transform.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

class Resize : public Transform {
 public:
  explicit Resize(const ResizeOptions& options) : options_(options) {
    require(options.shorter > 0 ? options.height == 0 && options.width == 0
                                : options.shorter == 0 && options.height >= 1 && options.width >= 1,
            fmt::format("resize: expected either a size, height and width of at least 1, or shorter, found "
                        "[{}, {}] and {}",
                        options.height, options.width, options.shorter));
  }
  const char* name() const override { return "resize"; }
  bool is_random() const override { return false; }
  ImageShape output(const ImageShape& input) const override {
    if (options_.shorter == 0) return {options_.height, options_.width, input.channels};
    // As torchvision: int(shorter * long / short).
    const auto longer = [&](int64_t long_side, int64_t short_side) {
      return static_cast<int64_t>(static_cast<double>(options_.shorter * long_side) /
                                  static_cast<double>(short_side));
    };
    return input.height <= input.width
               ? ImageShape{options_.shorter, longer(input.width, input.height), input.channels}
               : ImageShape{longer(input.height, input.width), options_.shorter, input.channels};
  }
  bool is_window() const override { return true; }
  std::optional<Window> window(const SampleDraws& /*draws*/, const ImageShape& input) const override {
    const ImageShape to = output(input);
    return Window::of({0, 0, input.height, input.width}, to.height, to.width, options_.filter);
  }

 private:
  ResizeOptions options_;
};

}  // namespace

std::unique_ptr<const Transform> make_transform(const ResizeOptions& options) {
  return std::make_unique<Resize>(options);
}

}  // namespace lockstep::data
