// Norms, proposals, ratios and updates, one after the other, for ten steps, against the formulas in double
// precision.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "run/device_vectors.h"
#include "run/step_kernels.h"

namespace lockstep::run {
namespace {

using optim::OptimizerKind;
using optim::OptimizerOptions;
using Doubles = std::vector<double>;

constexpr double kLossScale = 4, kStaticCount = 16, kCount = 8;  // half of the terms were ignored
constexpr int kSteps = 10;

struct Tensor {
  int64_t count;
  bool is_bias;
  double size;  ///< of its first values
};

// More than one chunk, a bias, and one that begins at 0.
const Tensor kTensors[] = {{70001, false, 0.5}, {33, true, 0.25}, {12, false, 2}, {5, false, 0}};

double drawn(int64_t i, int seed) {
  return static_cast<double>(
      static_cast<float>(std::sin(static_cast<double>(i * 37 % 1009 + 1) * (seed + 1.37))));
}

struct Problem {
  OptimizerOptions optimizer;
  double clip_norm = 0;
  /// A step whose gradients are not finite; -1: none.
  int bad_step = -1;
  /// Updates of the training in which none of this learned.
  int frozen_updates = 0;

  optim::ParameterRates rates_of(const Tensor& tensor) const {
    optim::ParameterRates rates = optim::rates_of(optimizer, {}, "", tensor.is_bias);
    rates.updates_before = static_cast<uint32_t>(frozen_updates);
    return rates;
  }
  double gradient(size_t tensor, int64_t i, int step) const {
    if (step == bad_step && tensor == 1 && i == 3) return std::numeric_limits<double>::infinity();
    return 0.1 * drawn(i, step * 7 + static_cast<int>(tensor));
  }
};

/// What training comes to in double precision.
std::vector<Doubles> expected_of(const Problem& problem) {
  const OptimizerOptions& o = problem.optimizer;
  std::vector<Doubles> w, first, second;
  for (size_t t = 0; t < std::size(kTensors); ++t) {
    Doubles& values = w.emplace_back();
    for (int64_t i = 0; i < kTensors[t].count; ++i)
      values.push_back(static_cast<float>(kTensors[t].size * drawn(i, 99)));
    first.emplace_back(values.size());
    second.emplace_back(values.size());
  }
  const auto norm = [](const Doubles& values) {
    double sum = 0;
    for (const double value : values) sum += value * value;
    return std::sqrt(sum);
  };
  int updates = 0;
  for (int step = 0; step < kSteps; ++step) {
    if (step == problem.bad_step) continue;
    ++updates;
    std::vector<Doubles> g;
    double all = 0;
    for (size_t t = 0; t < w.size(); ++t) {
      Doubles& values = g.emplace_back();
      for (size_t i = 0; i < w[t].size(); ++i)
        values.push_back(static_cast<float>(problem.gradient(t, static_cast<int64_t>(i), step)) *
                         kStaticCount / kCount / kLossScale);
      all += norm(values) * norm(values);
    }
    const double clip =
        problem.clip_norm > 0 ? std::min(1.0, problem.clip_norm / (std::sqrt(all) + 1e-6)) : 1;
    for (size_t t = 0; t < w.size(); ++t) {
      const double decay = kTensors[t].is_bias ? 0 : o.weight_decay;
      for (double& value : g[t]) value *= clip;
      const double weight_norm = norm(w[t]), gradient_norm = norm(g[t]);
      if (o.kind == OptimizerKind::lars) {
        double ratio = 1;
        if (!kTensors[t].is_bias && weight_norm > 0 && gradient_norm > 0)
          ratio = o.trust * weight_norm / (gradient_norm + decay * weight_norm + o.epsilon);
        for (size_t i = 0; i < w[t].size(); ++i) {
          first[t][i] = o.momentum * first[t][i] - o.learning_rate * ratio * (g[t][i] + decay * w[t][i]);
          w[t][i] += first[t][i];
        }
      } else if (o.kind == OptimizerKind::lamb) {
        Doubles u;
        for (size_t i = 0; i < w[t].size(); ++i) {
          first[t][i] = o.beta1 * first[t][i] + (1 - o.beta1) * g[t][i];
          second[t][i] = o.beta2 * second[t][i] + (1 - o.beta2) * g[t][i] * g[t][i];
          const double m = first[t][i] / (1 - std::pow(o.beta1, updates)),
                       v = second[t][i] / (1 - std::pow(o.beta2, updates));
          u.push_back(m / (std::sqrt(v) + o.epsilon) + decay * w[t][i]);
        }
        const double update_norm = norm(u);
        const bool adapts = !kTensors[t].is_bias && (decay != 0 || o.adapts_without_decay);
        const double ratio = adapts && weight_norm > 0 && update_norm > 0 ? weight_norm / update_norm : 1;
        for (size_t i = 0; i < w[t].size(); ++i) w[t][i] -= o.learning_rate * ratio * u[i];
      } else {  // plain SGD with momentum and adaptive clipping
        const double most = o.adaptive_clip.limit * std::max(weight_norm, o.adaptive_clip.floor);
        const double factor = gradient_norm > most ? most / gradient_norm : 1;
        for (size_t i = 0; i < w[t].size(); ++i) {
          first[t][i] = o.momentum * first[t][i] + factor * g[t][i] + decay * w[t][i];
          w[t][i] -= o.learning_rate * first[t][i];
        }
      }
    }
  }
  return w;
}

/// The kernels' work on one device.
class Machine : private DeviceVectors {
 public:
  Machine(device::DeviceKind kind, const Problem& problem, SumOrder order = SumOrder::own, int threads = 1)
      : DeviceVectors(kind), problem_(problem), kernels_(make_step_kernels(kind, threads, order)) {
    int64_t end = 0;
    for (const Tensor& tensor : kTensors) {
      offsets_.push_back(end);
      chunks_ += layout::chunks_in(tensor.count);
      end += (tensor.count + 15) / 16 * 16;
    }
    size_ = static_cast<size_t>(end);
    std::vector<float> values(size_);
    for (size_t t = 0; t < offsets_.size(); ++t)
      for (int64_t i = 0; i < kTensors[t].count; ++i)
        values[static_cast<size_t>(offsets_[t] + i)] = static_cast<float>(kTensors[t].size * drawn(i, 99));
    parameters_ = put(values);
    gradients_ = put(std::vector<float>(size_));
    for (auto& slot : state_) slot = put(std::vector<float>(size_));
    for (auto& sums : sums_) sums = put(std::vector<double>(static_cast<size_t>(chunks_), -1.0));
    scales_ = put(std::vector<double>(offsets_.size(), -1.0));
    verdict_ = put(std::vector<program::Verdict>(1));
    constants_ = put(std::vector<StepScalars>(1));
  }

  void train(int steps = kSteps) {
    int updates = problem_.frozen_updates;
    for (int step = 0; step < steps; ++step) {
      this->step(step, updates + 1);
      if (step != problem_.bad_step) ++updates;
    }
  }

  std::vector<std::vector<float>> parameters() { return cut(get(parameters_, size_)); }
  std::vector<std::vector<float>> state(int slot) { return cut(get(state_[slot], size_)); }
  std::vector<double> scales() { return get(scales_, offsets_.size()); }

 private:
  std::vector<std::vector<float>> cut(const std::vector<float>& all) const {
    std::vector<std::vector<float>> parts;
    for (size_t t = 0; t < offsets_.size(); ++t)
      parts.emplace_back(all.begin() + offsets_[t], all.begin() + offsets_[t] + kTensors[t].count);
    return parts;
  }

  void step(int number, int updates) {
    const OptimizerOptions& o = problem_.optimizer;
    std::vector<float> gradients(size_);
    for (size_t t = 0; t < offsets_.size(); ++t)
      for (int64_t i = 0; i < kTensors[t].count; ++i)
        gradients[static_cast<size_t>(offsets_[t] + i)] = static_cast<float>(problem_.gradient(t, i, number));
    fill(gradients_, gradients);
    program::Verdict verdict;
    verdict.count = kCount;
    fill(verdict_, std::vector{verdict});
    StepScalars constants;
    constants.kernels.loss_scale = kLossScale;
    constants.update.learning_rate = o.learning_rate;
    constants.update.beta1_power = std::pow(o.beta1, updates);
    constants.update.beta2_power = std::pow(o.beta2, updates);
    constants.update.updates = static_cast<uint32_t>(updates);
    fill(constants_, std::vector{constants});

    NormCall norm{.weight_chunks = chunks_,
                  .chunks = chunks_,
                  .sums = sums_[0],
                  .verdict = verdict_,
                  .constants = constants_,
                  .static_count = kStaticCount,
                  .clip_norm = problem_.clip_norm};
    NormCall of_parameters{.chunks = chunks_, .sums = sums_[1]};
    ProposeCall propose{.chunks = chunks_,
                        .sums = sums_[2],
                        .optimizer = o,
                        .verdict = verdict_,
                        .constants = constants_,
                        .whole_step = true,
                        .predicated = true,
                        .static_count = kStaticCount};
    const bool proposes = optim::proposed_slots(o) > 0;
    RatiosCall ratios{.optimizer = o,
                      .sums = {sums_[0], sums_[1], proposes ? sums_[2] : nullptr},
                      .verdict = verdict_,
                      .constants = constants_,
                      .whole_step = true,
                      .static_count = kStaticCount,
                      .scales = scales_};
    UpdateCall update{.optimizer = o,
                      .parameters = parameters_,
                      .gradients = gradients_,
                      .state = {state_[0], state_[1], state_[2]},
                      .scales = scales_,
                      .verdict = verdict_,
                      .constants = constants_,
                      .whole_step = true,
                      .predicated = true,
                      .static_count = kStaticCount};
    int64_t chunk = 0;
    for (size_t t = 0; t < offsets_.size(); ++t) {
      const Tensor& tensor = kTensors[t];
      const int64_t at = offsets_[t];
      const optim::ParameterRates rates = problem_.rates_of(tensor);
      norm.pieces.push_back({gradients_ + at, tensor.count, chunk});
      of_parameters.pieces.push_back({parameters_ + at, tensor.count, chunk});
      propose.pieces.push_back({.gradients = gradients_ + at,
                                .parameters = parameters_ + at,
                                .state = {state_[0] + at, state_[1] + at},
                                .count = tensor.count,
                                .first_chunk = chunk,
                                .rates = rates});
      ratios.pieces.push_back({.first_chunk = chunk,
                               .chunks = layout::chunks_in(tensor.count),
                               .parameter = static_cast<int32_t>(t),
                               .is_scaled = optim::is_scaled(o, rates, tensor.is_bias),
                               .rates = rates});
      update.pieces.push_back({.offset = at,
                               .count = tensor.count,
                               .rates = rates,
                               .is_statistic = false,
                               .momentum = 0,
                               .parameter = static_cast<int32_t>(t)});
      chunk += layout::chunks_in(tensor.count);
    }
    kernels_->sum_squares(norm, *stream_);
    kernels_->sum_squares(of_parameters, *stream_);
    kernels_->conclude_norm(norm, *stream_);
    if (proposes) kernels_->propose(propose, *stream_);
    kernels_->ratios(ratios, *stream_);
    kernels_->update(update, *stream_);
    stream_->synchronize();
  }

  Problem problem_;
  std::unique_ptr<StepKernels> kernels_;
  std::vector<int64_t> offsets_;
  int64_t chunks_ = 0;
  size_t size_ = 0;
  float *parameters_ = nullptr, *gradients_ = nullptr, *state_[3] = {};
  double *sums_[layout::kMeasuredCount] = {}, *scales_ = nullptr;
  program::Verdict* verdict_ = nullptr;
  StepScalars* constants_ = nullptr;
};

const OptimizerOptions kLars{.kind = OptimizerKind::lars,
                             .learning_rate = 2,
                             .momentum = 0.9,
                             .epsilon = 1e-3,
                             .weight_decay = 0.05,
                             .trust = 0.01};
const OptimizerOptions kLamb{
    .kind = OptimizerKind::lamb, .learning_rate = 0.02, .beta2 = 0.99, .epsilon = 1e-6, .weight_decay = 0.1};
const OptimizerOptions kClipped{.learning_rate = 0.1,
                                .momentum = 0.9,
                                .weight_decay = 0.05,
                                .adaptive_clip = {.limit = 0.02, .floor = 0.1}};

OptimizerOptions with(OptimizerOptions options, const std::function<void(OptimizerOptions&)>& change) {
  change(options);
  return options;
}

struct NamedProblem {
  const char* name;
  Problem problem;
};

std::vector<NamedProblem> problems() {
  return {{"lars", {kLars}},
          {"lars_clipped", {kLars, 0.05}},
          {"lars_without_decay", {with(kLars, [](auto& o) { o.weight_decay = 0; })}},
          {"lamb", {kLamb}},
          {"lamb_clipped", {kLamb, 0.05}},
          {"lamb_without_decay", {with(kLamb, [](auto& o) { o.weight_decay = 0; })}},
          {"lamb_adapts_all",
           {with(kLamb,
                 [](auto& o) {
                   o.weight_decay = 0;
                   o.adapts_without_decay = true;
                 })}},
          {"adaptive_clip", {kClipped}},
          {"lars_skips", {kLars, 0, 4}},
          {"lamb_skips", {kLamb, 0, 4}},
          {"lamb_thawed", {kLamb, 0, -1, 700}}};
}

/// The emulated GPU takes its time: those that differ in what kernels do.
std::vector<NamedProblem> problems_of(device::DeviceKind kind) {
  std::vector<NamedProblem> some = problems();
  if (kind == device::DeviceKind::cuda)
    std::erase_if(some, [](const NamedProblem& one) {
      const std::string name = one.name;
      return name != "lars_clipped" && name != "lamb_skips" && name != "lamb_thawed" &&
             name != "adaptive_clip";
    });
  return some;
}

class MeasureKernels : public ::testing::TestWithParam<device::DeviceKind> {
 protected:
  void SetUp() override {
    if (GetParam() == device::DeviceKind::cuda && device::probe_gpus().devices.empty())
      GTEST_SKIP() << device::probe_gpus().problem << ": ONLY_SKIPPED_TESTS";
  }
};

TEST_P(MeasureKernels, TenStepsAreThoseOfDoublePrecision) {
  for (const auto& [name, problem] : problems_of(GetParam())) {
    Machine machine(GetParam(), problem);
    machine.train();
    const auto expected = expected_of(problem);
    const auto found = machine.parameters();
    for (size_t t = 0; t < expected.size(); ++t) {
      double worst = 0, largest = 0;
      for (size_t i = 0; i < expected[t].size(); ++i) {
        worst = std::max(worst, std::abs(static_cast<double>(found[t][i]) - expected[t][i]));
        largest = std::max(largest, std::abs(expected[t][i]));
      }
      EXPECT_LE(worst, 1e-6 * std::max(1.0, largest)) << name << ", parameter " << t;
    }
  }
}

TEST(MeasureKernelsOfCpus, GiveBiasesNoRatio) {
  for (const auto& [name, problem] : problems()) {
    Machine machine(device::DeviceKind::cpu, problem);
    machine.train();
    const auto scales = machine.scales();
    if (problem.optimizer.adaptive_clip.limit > 0) {
      EXPECT_LT(scales[1], 1) << name;
    } else {
      EXPECT_EQ(scales[1], 1) << name;
      const bool adapts = problem.optimizer.kind == OptimizerKind::lars ||
                          problem.optimizer.weight_decay != 0 || problem.optimizer.adapts_without_decay;
      EXPECT_EQ(scales[0] != 1, adapts) << name;
    }
  }
}

TEST(MeasureKernelsOfCpus, MoveNoStateInAStepThatIsNotFinite) {
  // Its gradients are those of no step: state and parameters are as if it had not been.
  for (const OptimizerOptions& options : {kLars, kLamb}) {
    const auto cpu = device::DeviceKind::cpu;
    Machine skipped(cpu, {options, 0, kSteps - 1}), shorter(cpu, {options}), longer(cpu, {options});
    skipped.train();
    shorter.train(kSteps - 1);
    longer.train();
    EXPECT_EQ(skipped.parameters(), shorter.parameters());
    for (int slot = 0; slot < 2; ++slot) EXPECT_EQ(skipped.state(slot), shorter.state(slot));
    EXPECT_NE(longer.parameters(), shorter.parameters());
    EXPECT_NE(longer.state(0), shorter.state(0));
  }
}

TEST_P(MeasureKernels, ProcessorsBesideGpusHaveTheirBits) {
  if (GetParam() != device::DeviceKind::cuda) GTEST_SKIP() << "compares with a GPU";
  for (const auto& [name, problem] : problems_of(GetParam())) {
    Machine gpu(GetParam(), problem), processor(device::DeviceKind::cpu, problem, SumOrder::as_gpus, 3);
    gpu.train();
    processor.train();
    EXPECT_EQ(gpu.parameters(), processor.parameters()) << name;
    EXPECT_EQ(gpu.scales(), processor.scales()) << name;
    for (int slot = 0; slot < 2; ++slot) EXPECT_EQ(gpu.state(slot), processor.state(slot)) << name;
  }
}

TEST(MeasureKernelsOfCpus, GiveTheSameBitsOnSeveralThreads) {
  for (const auto& [name, problem] : problems()) {
    Machine one(device::DeviceKind::cpu, problem), three(device::DeviceKind::cpu, problem, SumOrder::own, 3);
    one.train();
    three.train();
    EXPECT_EQ(one.parameters(), three.parameters()) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, MeasureKernels,
                         ::testing::Values(device::DeviceKind::cpu, device::DeviceKind::cuda),
                         [](const auto& info) { return std::string(device::name_of(info.param)); });

}  // namespace
}  // namespace lockstep::run
