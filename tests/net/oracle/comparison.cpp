#include "net/oracle/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "net/oracle/training.h"

namespace lockstep::net {
namespace {

// How far right answers may lie apart is not guessed but tried: the oracle runs four times more with
// everything that an engine stores (values, gradients, the parameters that products read) off by random
// amounts of the size of rounding errors, and what that changes, three steps and an optimizer later, is the
// measure. So a sum that cancels, a normalization of nearly equal numbers or Adam on a gradient of nearly
// zero get the room that they need, and everything else gets none beyond it.

/// Unit roundoff of what is stored.
double roundoff_of(const config::RunConfig& config) {
  switch (config.precision.compute) {
    case config::ComputeType::bfloat16:
      return 0x1p-9;
    case config::ComputeType::float16:
    case config::ComputeType::tf32:  // factors of products, on GPUs
      return 0x1p-12;
    default:
      return 0x1p-24;
  }
}

/// A value is the result of a sum, each term of which rounds: of n terms, at random, about sqrt(n) roundoffs
/// of the largest. Models of the net have sums of up to a few hundred terms. Sums of narrow types are
/// float32, so that a value of them has one roundoff, and a second one where it is converted.
double amplitude_of(const config::RunConfig& config) {
  const double roundoff = roundoff_of(config);
  return roundoff == 0x1p-24 ? 8 * roundoff : 2 * roundoff;
}

/// Of gradients that are summed as bfloat16, every node of the sums' tree is rounded. With error feedback a
/// leaf also has what the step before lost.
double amplitude_of_gradients(const config::RunConfig& config) {
  const double narrow =
      config.parallel.wire == DType::bfloat16 ? (config.parallel.error_feedback ? 4 : 2) * 0x1p-9 : 0;
  return std::max(amplitude_of(config), narrow);
}

/// Random runs show the size of errors, not the largest that there may be.
constexpr double kMargin = 30;
constexpr int kRoundedRuns = 4;

/// Where rounding alone makes so much of a difference, relative to the largest of the numbers, these are
/// chaotic, and a few runs say nothing about them.
double chaos_of(const config::RunConfig& config) {
  return std::min(0.003, 2000 * amplitude_of_gradients(config));
}

/// A relative distance within which an error could carry a value over a kink: a hundred amplitudes.
bool is_near_kink(const Expected& exact, const config::RunConfig& config) {
  return exact.kinks.nearest < 100 * amplitude_of_gradients(config);
}

/// Adam with its own epsilon moves a parameter as far for a gradient of rounding errors as for any other, as
/// does LARS; LAMB and Muon do so with any epsilon.
bool amplifies_errors(const config::RunConfig& config) {
  if (config.optimizer.kind == optim::OptimizerKind::lamb ||
      config.optimizer.kind == optim::OptimizerKind::muon)
    return true;
  return config.optimizer.kind != optim::OptimizerKind::sgd && config.optimizer.epsilon < 1e-5;
}

bool decides_too_much(const Expected& exact, const Trained& trained) {
  if (trained.skipped_steps > 0) return true;
  return std::ranges::any_of(exact.losses, [](double loss) { return std::abs(loss) >= 1e4; });
}

/// The evaluation's counts as that of one more step.
std::vector<double> losses_of(std::vector<double> losses, double of_evaluation) {
  losses.push_back(of_evaluation);
  return losses;
}

class Comparison {
 public:
  Comparison(const config::RunConfig& config, const Trained& trained)
      : config_(config), trained_(trained), oracle_(config), exact_(oracle_.train(nullptr)) {
    for (uint64_t i = 0; i < kRoundedRuns; ++i) {
      Roundings roundings{.amplitude = amplitude_of(config),
                          .of_gradients = amplitude_of_gradients(config),
                          .draw = Draw(i + 1)};
      rounded_[i] = oracle_.train(&roundings);
    }
  }

  OracleReport report() {
    report_.compared = !decides_too_much(exact_, trained_);
    if (!report_.compared) return report_;
    const bool has_norms =
        config_.trainer.clip_norm > 0 || config_.trainer.nonfinite != config::NonFinitePolicy::ignore;
    numbers("loss", losses_of(trained_.losses, trained_.eval_loss),
            [](const Expected& expected) { return losses_of(expected.losses, expected.eval_loss); });
    if (has_norms && !is_near_kink(exact_, config_))
      numbers("norm", trained_.norms, [](const Expected& expected) { return expected.norms; });
    if (!report_.compared) return report_;
    report_.tensors = !is_near_kink(exact_, config_) && !amplifies_errors(config_);
    if (report_.tensors) {
      tensors();
      states();
    }
    if (const double error = oracle_.error_of_gradients(config_.trainer.seed); error > 1e-4)
      differ(fmt::format("the oracle's gradients are not those of its loss, by {:.2g}", error));
    return report_;
  }

 private:
  void differ(const std::string& text) {
    if (report_.difference.empty()) report_.difference = text;
  }

  /// One number is right by chance in a few runs; several of a kind are not.
  double doubt_of(const std::function<std::vector<double>(const Expected&)>& list) const {
    const std::vector<double> exact = list(exact_);
    double doubt = 0;
    for (const Expected& rounded : rounded_) {
      const std::vector<double> other = list(rounded);
      for (size_t i = 0; i < exact.size(); ++i)
        if (!std::isnan(exact[i])) doubt = std::max(doubt, std::abs(other[i] - exact[i]));
    }
    return doubt;
  }

  void numbers(const std::string& what, const std::vector<double>& actual,
               const std::function<std::vector<double>(const Expected&)>& list) {
    const std::vector<double> expected = list(exact_);
    double largest = 0;
    for (const double value : expected) largest = std::fmax(largest, value);
    const double doubt = doubt_of(list);
    if (doubt > chaos_of(config_) * (largest + 1e-3)) {
      report_.compared = false;
      return;
    }
    // After a kink the two paths may part, if not by much.
    const double loose = is_near_kink(exact_, config_) ? 0.05 * (1 + largest) : 0;
    const double tolerance = kMargin * doubt + amplitude_of(config_) * (1 + largest) + loose;
    for (size_t i = 0; i < actual.size(); ++i)
      if (std::isnan(expected[i])
              ? !std::isnan(actual[i])
              : !(actual[i] == expected[i] || std::abs(actual[i] - expected[i]) <= tolerance))
        differ(fmt::format("{} of step {}: {} and not {} (+- {:.2g})", what, i + 1, actual[i], expected[i],
                           tolerance));
  }

  void tensors() {
    const std::vector<Values> first = oracle_.first_parameters();
    for (size_t p = 0; p < exact_.parameters.size(); ++p) {
      const auto& trained = trained_.parameters[p];
      const auto of = [p](const Expected& run) { return run.parameters[p]; };
      // Parameters themselves are float32, and rounded by each step.
      const bool is_sharp = tensor(oracle_.graph().parameters[p].name, {trained.begin(), trained.end()}, of,
                                   first[p], /*roundoffs=*/8, /*least=*/1e-9);
      ++report_.tensor_count;
      if (is_sharp) ++report_.sharp_tensors;
    }
  }

  /// State is as small as gradients are, whose sums over samples round, too: of one number, such as the bias
  /// of one channel, perhaps much more than it is large, though a few rounded runs do not show it. How large
  /// the terms of sums are, other state of this kind tells. Of means of squares the roots are compared, since
  /// errors of gradients are what is estimated.
  void states() {
    if (trained_.states.size() != exact_.states.size())
      differ(fmt::format("{} tensors of optimizer state and not {}", trained_.states.size(),
                         exact_.states.size()));
    const auto kind_of = [](const std::string& name) { return name.substr(name.rfind('.') + 1); };
    std::map<std::string, double> largest;  // by kind
    for (const auto& [name, expected] : exact_.states)
      for (const double value : expected)
        largest[kind_of(name)] = std::fmax(
            largest[kind_of(name)], name.ends_with("_sq") ? std::sqrt(std::abs(value)) : std::abs(value));
    for (const auto& [name, expected] : exact_.states) {
      const auto found = trained_.states.find(name);
      if (found == trained_.states.end() || found->second.size() != expected.size()) {
        differ(fmt::format("there is no state '{}' of {} elements", name, expected.size()));
        continue;
      }
      const bool squares = name.ends_with("_sq");
      const auto comparable = [squares](Values values) {
        for (double& value : values)
          if (squares) value = std::sqrt(value);
        return values;
      };
      const auto of = [&](const Expected& run) { return comparable(run.states.at(name)); };
      // Averages, too, are compared with nothing, which is where all other state begins.
      const bool is_sharp = tensor(name, comparable({found->second.begin(), found->second.end()}), of,
                                   Values(expected.size()), /*roundoffs=*/64,
                                   /*least=*/4 * 0x1p-24 * largest[kind_of(name)]);
      ++report_.state_count;
      if (is_sharp) ++report_.sharp_states;
    }
  }

  /// Whether the tolerance is below a hundredth of what training has changed. Besides what rounded runs say,
  /// `roundoffs` of the largest element and `least` are tolerated.
  bool tensor(const std::string& name, const Values& actual, const std::function<Values(const Expected&)>& of,
              const Values& first, double roundoffs, double least) {
    const Values exact = of(exact_);
    double doubt = 0, largest = 0, change = 0, error = 0;
    for (const Expected& run : rounded_) {
      const Values rounded = of(run);
      for (size_t i = 0; i < exact.size(); ++i) doubt = std::max(doubt, std::abs(rounded[i] - exact[i]));
    }
    for (size_t i = 0; i < exact.size(); ++i) {
      largest = std::max(largest, std::abs(exact[i]));
      change = std::max(change, std::abs(exact[i] - first[i]));
      error = std::max(error, std::abs(actual[i] - exact[i]));
      if (std::isnan(actual[i])) error = INFINITY;
    }
    const double tolerance = kMargin * doubt + roundoffs * 0x1p-24 * largest + least;
    if (!(error <= tolerance))
      differ(fmt::format("tensor {} is off by {:.3g} (+- {:.2g}), and training changed it by {:.3g}", name,
                         error, tolerance, change));
    return tolerance < 0.01 * change;
  }

  const config::RunConfig& config_;
  const Trained& trained_;
  OracleTraining oracle_;
  Expected exact_;
  std::array<Expected, kRoundedRuns> rounded_;
  OracleReport report_;
};

}  // namespace

OracleReport compare_with_oracle(const config::RunConfig& config, const Trained& trained) {
  return Comparison(config, trained).report();
}

}  // namespace lockstep::net
