#include "observe/spike_detector.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lockstep::observe {
namespace {

/// Weight of a new value: the mean's memory is about fifty steps, short enough to follow a falling loss.
constexpr double kWeight = 0.02;
/// Losses and norms may be zero.
constexpr double kLeastValue = 1e-12;

double logarithm(double value) { return std::log(std::max(value, kLeastValue)); }

std::string describe(const char* what, double value, double mean, double z) {
  return fmt::format("{} {:.6g} lies {:.1f} standard deviations above its recent mean of {:.6g}", what, value,
                     z, std::exp(mean));
}

}  // namespace

std::optional<double> SpikeDetector::Series::z_of(double value) const {
  if (seen < kWarmUpSteps) return std::nullopt;
  return (value - mean) / std::max(std::sqrt(variance), least_deviation);
}

void SpikeDetector::Series::absorb(double value) {
  // The plain mean and variance, until a step weighs kWeight in them.
  const double weight = std::max(1.0 / static_cast<double>(++seen), kWeight);
  const double delta = value - mean;
  mean += weight * delta;
  variance = (1 - weight) * (variance + weight * delta * delta);
}

std::optional<Spike> SpikeDetector::add(int64_t step, double loss, double norm) {
  if (threshold_ <= 0 || !std::isfinite(loss) || !std::isfinite(norm)) return std::nullopt;
  const double log_loss = logarithm(loss), log_norm = logarithm(norm);
  if (pause_ > 0) {
    --pause_;
  } else {
    Spike spike;
    std::string text;
    if (const auto z = loss_.z_of(log_loss); z && *z > threshold_) {
      spike.loss_z = z;
      text = describe("loss", loss, loss_.mean, *z);
    }
    if (const auto z = norm_.z_of(log_norm); z && *z > threshold_) {
      spike.norm_z = z;
      text += (text.empty() ? "" : "; ") + describe("gradient norm", norm, norm_.mean, *z);
    }
    if (!text.empty()) {
      // A lone outlier is not taken in; what lasts is, during the pause.
      pause_ = kPauseSteps;
      spike.message = fmt::format("step {}: {}", step, text);
      return spike;
    }
  }
  loss_.absorb(log_loss);
  norm_.absorb(log_norm);
  return std::nullopt;
}

}  // namespace lockstep::observe
