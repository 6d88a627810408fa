#include "data/transforms/mixing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lockstep/error.h"
#include "lockstep/ops.h"
#include "pixels/formulas.h"

namespace lockstep::data {
namespace {

constexpr uint32_t kChoice = 0, kPartner = 1, kBoxX = 2, kBoxY = 3, kShare = 16;  // draws

/// The logarithm of a number from Gamma(alpha, 1), from 3000 draws at most. Marsaglia and Tsang, "A simple
/// method for generating gamma variables", 2000: each try passes with more than 95 %. Logarithms, because
/// numbers for a small alpha underflow.
double log_gamma_draw(const SampleDraws& draws, uint32_t first, double alpha) {
  constexpr uint32_t kTries = 999;
  const double d = (alpha < 1 ? alpha + 1 : alpha) - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  double log_sample = std::log(d);
  for (uint32_t i = 0; i < kTries; ++i) {
    const uint32_t at = first + 3 + 3 * i;
    const double normal = std::sqrt(-2 * std::log(1 - draws.uniform(at))) *
                          std::cos(2 * std::numbers::pi * draws.uniform(at + 1));
    const double root = 1 + c * normal, v = root * root * root;
    if (root <= 0) continue;
    if (std::log(1 - draws.uniform(at + 2)) >= normal * normal / 2 + d - d * v + d * std::log(v)) continue;
    log_sample = std::log(d * v);
    break;
  }
  return alpha < 1 ? log_sample + std::log(1 - draws.uniform(first)) / alpha : log_sample;
}

template <class Options>
void check(const char* name, const Options& options) {
  require(options.alpha > 0 && std::isfinite(options.alpha),
          fmt::format("{}.alpha: expected a number above 0, found {}", name, options.alpha));
  require(options.probability >= 0 && options.probability <= 1,
          fmt::format("{}.probability: expected from 0 to 1, found {}", name, options.probability));
}

void check(const MixingOptions& mixing) {
  if (mixing.mixup) check("mixup", *mixing.mixup);
  if (mixing.cutmix) check("cutmix", *mixing.cutmix);
  if (!mixing.mixup || !mixing.cutmix) return;
  const double sum = mixing.mixup->probability + mixing.cutmix->probability;
  require(sum <= 1, fmt::format("data.transforms: a sample is mixed by mixup or by cutmix, but their "
                                "probabilities add up to {}; set both, such as to 0.5",
                                sum));
}

/// The partner's part of an image of which it gets about 1 - `share`, cut off at the border.
Region draw_box(const SampleDraws& draws, double share, const ImageShape& image) {
  const int64_t middle_x = draws.below(kBoxX, image.width), middle_y = draws.below(kBoxY, image.height);
  const double half = 0.5 * std::sqrt(1 - share);
  const auto half_width = static_cast<int64_t>(half * static_cast<double>(image.width)),
             half_height = static_cast<int64_t>(half * static_cast<double>(image.height));
  const int64_t x = std::max<int64_t>(0, middle_x - half_width),
                y = std::max<int64_t>(0, middle_y - half_height);
  return {.y = y,
          .x = x,
          .height = std::min(image.height, middle_y + half_height) - y,
          .width = std::min(image.width, middle_x + half_width) - x};
}

float share_of(const Mixing& mixing) { return static_cast<float>(mixing.mixture) / kWholeShare; }

int32_t mixture_of(double share) { return static_cast<int32_t>(std::lround(share * kWholeShare)); }

}  // namespace

double draw_beta(const SampleDraws& draws, uint32_t first, double alpha) {
  const double a = log_gamma_draw(draws, first, alpha), b = log_gamma_draw(draws, first + 3000, alpha);
  return 1 / (1 + std::exp(b - a));
}

TransformList cut_at_mixing(std::span<const TransformOptions> transforms) {
  TransformList list;
  const auto add = [&](const auto& options, auto& member, const char* name, uint32_t place) {
    require(!member, fmt::format("data.transforms: {} is there twice; a label mixes two classes", name));
    require(list.after.empty(),
            fmt::format("data.transforms: {} stands apart from the other one of mixup and "
                        "cutmix; put one behind the other",
                        name));
    if (list.place_after == 0) list.mixing->place = place;
    list.place_after = place + 1;
    member = options;
  };
  for (uint32_t place = 0; place < transforms.size(); ++place) {
    const auto& each = transforms[place];
    const auto* mixup = std::get_if<MixupOptions>(&each);
    const auto* cutmix = std::get_if<CutmixOptions>(&each);
    if (mixup == nullptr && cutmix == nullptr) {
      (list.mixing ? list.after : list.before).push_back(each);
      continue;
    }
    if (!list.mixing) list.mixing.emplace();
    if (mixup != nullptr) add(*mixup, list.mixing->mixup, "mixup", place);
    if (cutmix != nullptr) add(*cutmix, list.mixing->cutmix, "cutmix", place);
  }
  if (list.mixing) check(*list.mixing);
  return list;
}

std::optional<Mixing> draw_mixing(const MixingOptions& options, const SampleKey& key, int64_t samples,
                                  const ImageShape& image) {
  const SampleDraws draws(key, options.place);
  const double choice = draws.uniform(kChoice), mixup = options.mixup ? options.mixup->probability : 0,
               cutmix = options.cutmix ? options.cutmix->probability : 0;
  if (choice >= mixup + cutmix) return {};
  Mixing mixing{.is_box = choice >= mixup};
  // Another sample, unless there is none.
  const auto step = static_cast<int64_t>(draws.uniform(kPartner) * static_cast<double>(samples - 1));
  mixing.partner = samples == 1 ? key.sample : (key.sample + 1 + step) % samples;
  const double own = draw_beta(draws, kShare, mixing.is_box ? options.cutmix->alpha : options.mixup->alpha);
  if (!mixing.is_box) {
    mixing.mixture = mixture_of(1 - own);
    return mixing;
  }
  mixing.box = draw_box(draws, own, image);
  const int64_t area = mixing.box.height * mixing.box.width;
  mixing.mixture = mixture_of(static_cast<double>(area) / static_cast<double>(image.pixels()));
  return mixing;
}

pixels::Step step_of(const Mixing& mixing) {
  if (!mixing.is_box) return {.kind = pixels::StepKind::share, .value = {share_of(mixing)}};
  const Region& box = mixing.box;
  return {.kind = pixels::StepKind::box,
          .place = {static_cast<int32_t>(box.y), static_cast<int32_t>(box.x),
                    static_cast<int32_t>(box.height), static_cast<int32_t>(box.width)}};
}

void mix_images(const Mixing& mixing, const ImageShape& shape, const float* partner, float* image) {
  if (mixing.is_box) {
    const Region& box = mixing.box;
    for (int64_t y = box.y; y < box.y + box.height; ++y) {
      const int64_t first = (y * shape.width + box.x) * shape.channels;
      std::copy_n(partner + first, box.width * shape.channels, image + first);
    }
    return;
  }
  const float share = share_of(mixing);
  for (int64_t i = 0; i < shape.count(); ++i) image[i] = pixels::averaged(image[i], partner[i], share);
}

}  // namespace lockstep::data
