// Muon's updates of whole matrices beside AdamW's of what is none, for ten steps, against the formulas in
// double precision.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/half.h"
#include "program/matrix_scratch.h"
#include "run/device_vectors.h"
#include "run/step_kernels.h"

namespace lockstep::run {
namespace {

using optim::OptimizerOptions;
using Doubles = std::vector<double>;
using Floats = std::vector<float>;

constexpr double kMatrixLossScale = 4, kStaticMatrices = 16, kMatrices = 8;  // half of the terms were ignored
constexpr int kMatrixSteps = 10;

struct MatrixTensor {
  int64_t count;
  MatrixSize matrix;  ///< none: AdamW
  double rate_factor = 1, weight_decay = 0;
};

// Tall, of more than one chunk of squares; wide; a bias; square.
const MatrixTensor kMatrixTensors[] = {{8200 * 8, {8200, 8}, 1, 0.1},
                                       {24 * 50, {24, 50}, 0.5, 0},
                                       {33, {}, 0.25, 0.05},
                                       {19 * 19, {19, 19}, 1, 0}};

Floats drawn(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  Floats values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(random()) / 2147483648.0f - 1.0f);
  return values;
}

struct MatrixProblem {
  OptimizerOptions optimizer;
  /// A step whose gradients are not finite; -1: none.
  int bad_step = -1;

  Floats first(size_t tensor) const {
    return drawn(kMatrixTensors[tensor].count, 100 + static_cast<unsigned>(tensor));
  }
  Floats gradient(size_t tensor, int step) const {
    Floats values =
        drawn(kMatrixTensors[tensor].count, static_cast<unsigned>(7 * step) + static_cast<unsigned>(tensor));
    if (step == bad_step && tensor == 1) values[3] = std::numeric_limits<float>::infinity();
    return values;
  }
};

OptimizerOptions muon() {
  return {.kind = optim::OptimizerKind::muon,
          .learning_rate = 0.02,
          .momentum = 0.95,
          .nesterov = true,
          .beta2 = 0.95,
          .epsilon = 1e-4};
}

/// result = left right, of row-major matrices.
Doubles product(const Doubles& left, const Doubles& right, int64_t rows, int64_t inner, int64_t columns) {
  Doubles result(static_cast<size_t>(rows * columns));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < inner; ++k)
      for (int64_t c = 0; c < columns; ++c)
        result[static_cast<size_t>(r * columns + c)] +=
            left[static_cast<size_t>(r * inner + k)] * right[static_cast<size_t>(k * columns + c)];
  return result;
}

Doubles transposed(const Doubles& x, int64_t rows, int64_t columns) {
  Doubles result(x.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      result[static_cast<size_t>(c * rows + r)] = x[static_cast<size_t>(r * columns + c)];
  return result;
}

/// As muon.py has it: of a wide matrix, or of the transpose.
Doubles orthogonal(Doubles x, MatrixSize size, int iterations) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  for (double& value : x) value /= std::sqrt(squares) + 1e-7;
  const int64_t rows = std::min(size.rows, size.columns), columns = std::max(size.rows, size.columns);
  if (size.rows > size.columns) x = transposed(x, size.rows, size.columns);
  for (int i = 0; i < iterations; ++i) {
    const Doubles a = product(x, transposed(x, rows, columns), rows, columns, rows);
    Doubles b = product(a, a, rows, rows, rows);
    for (size_t e = 0; e < b.size(); ++e) b[e] = 2.0315 * b[e] - 4.7750 * a[e];
    const Doubles of_b = product(b, x, rows, rows, columns);
    for (size_t e = 0; e < x.size(); ++e) x[e] = 3.4445 * x[e] + of_b[e];
  }
  return size.rows > size.columns ? transposed(x, rows, columns) : x;
}

struct ExpectedMatrices {
  std::vector<Doubles> parameters, averages;
};

ExpectedMatrices expected_matrices(const MatrixProblem& problem) {
  const OptimizerOptions& o = problem.optimizer;
  ExpectedMatrices all;
  std::vector<Doubles> first, second;
  for (size_t t = 0; t < std::size(kMatrixTensors); ++t) {
    const Floats values = problem.first(t);
    all.parameters.emplace_back(values.begin(), values.end());
    all.averages.emplace_back(values.size());
    first.emplace_back(values.size());
    second.emplace_back(values.size());
  }
  int updates = 0;
  for (int step = 0; step < kMatrixSteps; ++step) {
    if (step == problem.bad_step) continue;
    ++updates;
    const double gain = updates == 1 ? 1 : 1 - o.average.decay;
    for (size_t t = 0; t < std::size(kMatrixTensors); ++t) {
      const MatrixTensor& tensor = kMatrixTensors[t];
      Doubles &w = all.parameters[t], u;
      const double rate = o.learning_rate * tensor.rate_factor;
      const Floats gradient = problem.gradient(t, step);
      for (size_t i = 0; i < w.size(); ++i) {
        const double g = static_cast<double>(gradient[i]) * kStaticMatrices / kMatrices / kMatrixLossScale;
        double &m = first[t][i], &v = second[t][i];
        if (tensor.matrix.is_matrix()) {
          m += (1 - o.momentum) * (g - m);
          u.push_back(o.nesterov ? g + o.momentum * (m - g) : m);
        } else {
          m = o.beta1 * m + (1 - o.beta1) * g;
          v = o.beta2 * v + (1 - o.beta2) * g * g;
          u.push_back(m / (1 - std::pow(o.beta1, updates)) /
                      (std::sqrt(v / (1 - std::pow(o.beta2, updates))) + o.epsilon));
        }
      }
      double scale = 1;
      if (tensor.matrix.is_matrix()) {
        u = orthogonal(u, tensor.matrix, o.newton_schulz_steps);
        const double rows = tensor.matrix.rows, columns = tensor.matrix.columns;
        scale = o.matrix_scale == optim::MatrixScale::match_adamw ? 0.2 * std::sqrt(std::max(rows, columns))
                                                                  : std::sqrt(std::max(1.0, rows / columns));
      }
      for (size_t i = 0; i < w.size(); ++i) {
        w[i] = w[i] * (1 - rate * tensor.weight_decay) - rate * scale * u[i];
        all.averages[t][i] += gain * (w[i] - all.averages[t][i]);
      }
    }
  }
  return all;
}

/// The kernels' work on one device.
class MatrixMachine : private DeviceVectors {
 public:
  MatrixMachine(device::DeviceKind kind, const MatrixProblem& problem, int threads = 1)
      : DeviceVectors(kind), problem_(problem), kernels_(make_step_kernels(kind, threads)) {
    int64_t end = 0, scratch = 0;
    for (const MatrixTensor& tensor : kMatrixTensors) {
      offsets_.push_back(end);
      end += (tensor.count + 15) / 16 * 16;
      orthogonalizers_.push_back(nullptr);
      if (!tensor.matrix.is_matrix()) continue;
      orthogonalizers_.back() =
          ops::make_orthogonalizer(kind, tensor.matrix, problem.optimizer.newton_schulz_steps, threads);
      orthogonalizers_.back()->prepare(*device_);
      scratch = std::max(
          scratch,
          program::MatrixScratch(tensor.matrix, orthogonalizers_.back()->workspace_bytes()).size_bytes);
    }
    size_ = static_cast<size_t>(end);
    Floats values(size_);
    for (size_t t = 0; t < offsets_.size(); ++t)
      std::ranges::copy(problem.first(t), values.begin() + offsets_[t]);
    parameters_ = put(values);
    copies_ = put(std::vector<bfloat16>(size_));
    gradients_ = put(Floats(size_));
    for (auto& slot : state_) slot = put(Floats(size_));
    scratch_ = put(std::vector<std::byte>(static_cast<size_t>(scratch)));
    verdict_ = put(std::vector<program::Verdict>(1));
    constants_ = put(std::vector<StepScalars>(1));
  }

  void train(int steps = kMatrixSteps) {
    int updates = 0;
    for (int step = 0; step < steps; ++step) {
      this->step(step, updates + 1);
      if (step != problem_.bad_step) ++updates;
    }
  }

  std::vector<Floats> parameters() { return cut(get(parameters_, size_)); }
  std::vector<Floats> state(int slot) { return cut(get(state_[slot], size_)); }
  std::vector<bfloat16> copies() { return get(copies_, size_); }
  int64_t offset(size_t tensor) const { return offsets_[tensor]; }

 private:
  std::vector<Floats> cut(const Floats& all) const {
    std::vector<Floats> parts;
    for (size_t t = 0; t < offsets_.size(); ++t)
      parts.emplace_back(all.begin() + offsets_[t], all.begin() + offsets_[t] + kMatrixTensors[t].count);
    return parts;
  }

  void step(int number, int updates) {
    const OptimizerOptions& o = problem_.optimizer;
    Floats gradients(size_);
    for (size_t t = 0; t < offsets_.size(); ++t)
      std::ranges::copy(problem_.gradient(t, number), gradients.begin() + offsets_[t]);
    fill(gradients_, gradients);
    program::Verdict verdict;
    verdict.count = kMatrices;
    verdict.finite = number == problem_.bad_step ? 0 : 1;
    verdict.gradient_scale = 1;
    fill(verdict_, std::vector{verdict});
    StepScalars constants;
    constants.kernels.loss_scale = kMatrixLossScale;
    constants.update = {.learning_rate = o.learning_rate,
                        .beta1_power = std::pow(o.beta1, updates),
                        .beta2_power = std::pow(o.beta2, updates),
                        .average_gain = static_cast<float>(updates == 1 ? 1 : 1 - o.average.decay)};
    fill(constants_, std::vector{constants});
    UpdateCall update{.optimizer = o,
                      .parameters = parameters_,
                      .copy = {copies_, DType::bfloat16},
                      .gradients = gradients_,
                      .state = {state_[0], state_[1], state_[2]},
                      .verdict = verdict_,
                      .constants = constants_,
                      .whole_step = true,
                      .predicated = true,
                      .static_count = kStaticMatrices};
    for (size_t t = 0; t < offsets_.size(); ++t) {
      const MatrixTensor& tensor = kMatrixTensors[t];
      const UpdateCall::Piece piece{.offset = offsets_[t],
                                    .count = tensor.count,
                                    .rates = {.weight_decay = tensor.weight_decay,
                                              .learning_rate_factor = tensor.rate_factor,
                                              .matrix = tensor.matrix},
                                    .is_statistic = false,
                                    .momentum = 0,
                                    .parameter = static_cast<int32_t>(t)};
      if (!tensor.matrix.is_matrix()) {
        update.pieces.push_back(piece);
        continue;
      }
      const program::MatrixScratch places(tensor.matrix, orthogonalizers_[t]->workspace_bytes());
      auto* const direction = reinterpret_cast<float*>(scratch_);
      update.matrices.push_back(
          {.piece = piece,
           .direction = direction,
           .squares = {.pieces = {{.data = direction, .count = tensor.count, .first_chunk = 0}},
                       .chunks = layout::chunks_in(tensor.count),
                       .sums = reinterpret_cast<double*>(scratch_ + places.squares)},
           .orthogonalizer = orthogonalizers_[t],
           .workspace = scratch_ + places.workspace});
    }
    kernels_->update(update, *stream_);
    stream_->synchronize();
  }

  MatrixProblem problem_;
  std::unique_ptr<StepKernels> kernels_;
  std::vector<std::shared_ptr<ops::Orthogonalizer>> orthogonalizers_;
  std::vector<int64_t> offsets_;
  size_t size_ = 0;
  float *parameters_ = nullptr, *gradients_ = nullptr, *state_[3] = {};
  bfloat16* copies_ = nullptr;
  std::byte* scratch_ = nullptr;
  program::Verdict* verdict_ = nullptr;
  StepScalars* constants_ = nullptr;
};

struct NamedMatrixProblem {
  const char* name;
  MatrixProblem problem;
};

std::vector<NamedMatrixProblem> matrix_problems() {
  MatrixProblem plain{muon()}, momentum = plain, average = plain, skips = plain;
  momentum.optimizer.nesterov = false;
  momentum.optimizer.momentum = 0.8;
  momentum.optimizer.newton_schulz_steps = 3;
  momentum.optimizer.matrix_scale = optim::MatrixScale::match_adamw;
  average.optimizer.average = {.enabled = true, .decay = 0.75};
  skips.bad_step = 4;
  return {{"muon", plain}, {"plain_momentum", momentum}, {"average", average}, {"skips", skips}};
}

/// The emulated GPU takes its time.
std::vector<NamedMatrixProblem> matrix_problems_of(device::DeviceKind kind) {
  std::vector<NamedMatrixProblem> some = matrix_problems();
  if (kind == device::DeviceKind::cuda)
    std::erase_if(some, [](const NamedMatrixProblem& one) { return std::string(one.name) == "muon"; });
  return some;
}

double worst_difference(const Floats& found, const Doubles& expected) {
  double worst = 0, largest = 1;
  for (size_t i = 0; i < expected.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(found[i]) - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  return worst / largest;
}

class MatrixUpdates : public ::testing::TestWithParam<device::DeviceKind> {
 protected:
  void SetUp() override {
    if (GetParam() == device::DeviceKind::cuda && device::probe_gpus().devices.empty())
      GTEST_SKIP() << device::probe_gpus().problem << ": ONLY_SKIPPED_TESTS";
  }
};

TEST_P(MatrixUpdates, OfTenStepsAreThoseOfDoublePrecision) {
  for (const auto& [name, problem] : matrix_problems_of(GetParam())) {
    MatrixMachine machine(GetParam(), problem);
    machine.train();
    const ExpectedMatrices expected = expected_matrices(problem);
    const auto found = machine.parameters();
    for (size_t t = 0; t < expected.parameters.size(); ++t) {
      EXPECT_LE(worst_difference(found[t], expected.parameters[t]), 1e-6) << name << ", parameter " << t;
      if (problem.optimizer.average.enabled)
        EXPECT_LE(worst_difference(machine.state(2)[t], expected.averages[t]), 1e-6) << name << ", " << t;
    }
  }
}

TEST_P(MatrixUpdates, WriteCopiesAndLeaveTheSecondSlot) {
  MatrixMachine machine(GetParam(), {muon()});
  machine.train(2);
  const auto found = machine.parameters();
  const auto copies = machine.copies();
  for (size_t t = 0; t < found.size(); ++t) {
    for (size_t i = 0; i < found[t].size(); ++i)
      ASSERT_EQ(static_cast<float>(copies[static_cast<size_t>(machine.offset(t)) + i]),
                static_cast<float>(bfloat16(found[t][i])))
          << t << ", " << i;
    const Floats second = machine.state(1)[t];
    EXPECT_EQ(second == Floats(second.size(), 0.0f), kMatrixTensors[t].matrix.is_matrix()) << t;
  }
}

TEST_P(MatrixUpdates, MoveNothingInAStepThatIsNotFinite) {
  // Its gradients are those of no step: state and parameters are as if it had not been.
  MatrixMachine skipped(GetParam(), {muon(), 2}), shorter(GetParam(), {muon()}), longer(GetParam(), {muon()});
  skipped.train(3);
  shorter.train(2);
  longer.train(3);
  EXPECT_EQ(skipped.parameters(), shorter.parameters());
  for (int slot = 0; slot < 2; ++slot) EXPECT_EQ(skipped.state(slot), shorter.state(slot));
  EXPECT_NE(longer.parameters(), shorter.parameters());
  EXPECT_NE(longer.state(0), shorter.state(0));
}

TEST(MatrixUpdatesOfCpus, HaveTheSameBitsOnSeveralThreads) {
  MatrixMachine one(device::DeviceKind::cpu, {muon()}), three(device::DeviceKind::cpu, {muon()}, 3);
  one.train(3);
  three.train(3);
  EXPECT_EQ(one.parameters(), three.parameters());
  EXPECT_EQ(one.state(0), three.state(0));
}

INSTANTIATE_TEST_SUITE_P(Devices, MatrixUpdates,
                         ::testing::Values(device::DeviceKind::cpu, device::DeviceKind::cuda),
                         [](const auto& info) {
                           return info.param == device::DeviceKind::cpu ? "cpu" : "gpu";
                         });

}  // namespace
}  // namespace lockstep::run
