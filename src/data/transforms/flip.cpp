#include <fmt/format.h>

#include "data/transforms/transform.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

class Flip : public Transform {
 public:
  explicit Flip(const FlipOptions& options) : options_(options) {
    require(
        options.horizontal >= 0 && options.horizontal <= 1 && options.vertical >= 0 && options.vertical <= 1,
        fmt::format("flip: expected probabilities from 0 to 1, found {} and {}", options.horizontal,
                    options.vertical));
  }
  const char* name() const override { return "flip"; }
  bool is_random() const override { return true; }
  std::optional<int32_t> step_count(const ImageShape& /*shape*/) const override { return 1; }
  void write_steps(const SampleDraws& draws, const ImageShape& /*shape*/,
                   pixels::Step* steps) const override {
    steps[0] = {.kind = pixels::StepKind::mirror,
                .place = {draws.chance(0, options_.horizontal), draws.chance(1, options_.vertical)}};
  }

 private:
  FlipOptions options_;
};

}  // namespace

std::unique_ptr<const Transform> make_transform(const FlipOptions& options) {
  return std::make_unique<Flip>(options);
}

}  // namespace lockstep::data
