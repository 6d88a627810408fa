// Muon's update of a matrix on a processor: beside PyTorch, and what must not change its bits.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "ops/op_testing.h"
#include "ops/orthogonalizer.h"
#include "optim/formulas.h"

namespace lockstep::optim {
namespace {

using testing::expect_near;
using testing::random_values;
using Floats = std::vector<float>;

double sum_of_squares(const Floats& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return sum;
}

class Muon : public ::testing::Test {
 protected:
  Floats orthogonal(Floats x, const MatrixSize& size, int iterations, int threads = 1) {
    return orthogonal(x, sum_of_squares(x), size, iterations, threads);
  }
  Floats orthogonal(Floats x, double squares, const MatrixSize& size, int iterations, int threads) {
    const auto orthogonalizer = ops::make_orthogonalizer(device::DeviceKind::cpu, size, iterations, threads);
    const device::Buffer workspace = device_->allocate(orthogonalizer->workspace_bytes());
    orthogonalizer->run(x.data(), &squares, 1, workspace.data(), *stream_);
    return x;
  }

  void step(const OptimizerOptions& options, const MatrixSize& size, Floats& parameters,
            const Floats& gradients, Floats& mean) {
    UpdateArguments arguments{.gradients = gradients.data(),
                              .state = {mean.data()},
                              .count = size.count(),
                              .rates = {.weight_decay = options.weight_decay, .matrix = size}};
    const UpdateConstants constants{.learning_rate = options.learning_rate};
    Floats direction(parameters.size());
    arguments.parameters = direction.data();
    make_direction(options, arguments, constants, *stream_);
    direction = orthogonal(direction, size, options.newton_schulz_steps);
    arguments.parameters = parameters.data();
    arguments.gradients = direction.data();
    follow_direction(options, arguments, constants, *stream_);
  }

  std::unique_ptr<device::Device> device_ = device::make_cpu_device();
  std::unique_ptr<device::Stream> stream_ = device_->create_stream("compute");
};

TEST_F(Muon, FollowsPyTorchForFiveSteps) {
  const OptimizerOptions plain{
      .kind = OptimizerKind::muon, .learning_rate = 0.05, .momentum = 0.95, .nesterov = true};
  OptimizerOptions decays = plain, momentum = plain, matches = plain;
  decays.weight_decay = 0.3;
  momentum.momentum = 0.8;
  momentum.nesterov = false;
  momentum.newton_schulz_steps = 3;
  matches.matrix_scale = MatrixScale::match_adamw;
  matches.weight_decay = 0.1;
  const struct {
    const char* name;
    MatrixSize size;
    OptimizerOptions options;
  } cases[] = {{"wide", {5, 12}, plain},
               {"tall", {12, 5}, decays},
               {"plain_momentum", {7, 4}, momentum},
               {"match_adamw", {6, 6}, matches}};
  for (const auto& [name, size, options] : cases) {
    const auto golden = testing::read_golden("muon", name);
    const auto& initial = golden.at("parameters").values;
    const auto& gradients = golden.at("gradients").values;
    const auto& expected = golden.at("after each step").values;
    const int64_t count = size.count();
    ASSERT_EQ(static_cast<int64_t>(initial.size()), count);
    Floats parameters(initial.begin(), initial.end()), mean(initial.size());
    for (int64_t i = 0; i < 5; ++i) {
      step(options, size, parameters,
           Floats(gradients.begin() + i * count, gradients.begin() + (i + 1) * count), mean);
      expect_near({parameters.begin(), parameters.end()},
                  {expected.begin() + i * count, expected.begin() + (i + 1) * count}, 1e-6,
                  std::string(name) + " after step " + std::to_string(i));
    }
  }
}

/// A single row has one singular value, its norm: iterations are those of a number.
TEST_F(Muon, OfARowIsAFormulaOfItsNorm) {
  const Floats row{3, 0, -4}, column = row;
  for (const int iterations : {1, 5}) {
    double s = 1;
    for (int i = 0; i < iterations; ++i) s = 3.4445 * s - 4.7750 * std::pow(s, 3) + 2.0315 * std::pow(s, 5);
    const Floats by_row = orthogonal(row, {1, 3}, iterations);
    for (size_t i = 0; i < row.size(); ++i)
      EXPECT_NEAR(by_row[i], s * static_cast<double>(row[i]) / 5, 3e-7) << iterations;
    EXPECT_EQ(orthogonal(column, {3, 1}, iterations), by_row);
  }
}

TEST_F(Muon, BringsSingularValuesNearOne) {
  const MatrixSize size{24, 90};
  const auto noise = random_values(size.count(), 3);
  const Floats x = orthogonal(Floats(noise.begin(), noise.end()), size, 5);
  // Of X Xᵀ the diagonal is the mean of squared singular values, each between 0.68² and 1.21².
  double trace = 0;
  for (int row = 0; row < size.rows; ++row) {
    double sum = 0;
    for (int column = 0; column < size.columns; ++column)
      sum += std::pow(static_cast<double>(x[static_cast<size_t>(row * size.columns + column)]), 2);
    EXPECT_GT(sum, 0.46) << row;
    EXPECT_LT(sum, 1.47) << row;
    trace += sum;
  }
  EXPECT_NEAR(trace / size.rows, 0.8, 0.2);
}

TEST_F(Muon, LeavesAMatrixOfZerosAsItIs) {
  EXPECT_EQ(orthogonal(Floats(35, 0.0f), {7, 5}, 5), Floats(35, 0.0f));
}

TEST_F(Muon, HasTheSameBitsOfTheTransposeAndOnSeveralThreads) {
  for (const MatrixSize& size : {MatrixSize{70, 31}, MatrixSize{33, 33}, MatrixSize{500, 400}}) {
    const auto noise = random_values(size.count(), 11);
    const Floats x(noise.begin(), noise.end());
    const auto at = [](int64_t row, int64_t column, int64_t columns) {
      return static_cast<size_t>(row * columns + column);
    };
    Floats transposed(x.size());
    for (int64_t r = 0; r < size.rows; ++r)
      for (int64_t c = 0; c < size.columns; ++c) transposed[at(c, r, size.rows)] = x[at(r, c, size.columns)];
    const double squares = sum_of_squares(x);
    const Floats one = orthogonal(x, squares, size, 5, 1);
    EXPECT_EQ(orthogonal(x, squares, size, 5, 3), one) << size.rows;
    if (size.rows == size.columns) continue;  // A is X Xᵀ of both
    const Floats other = orthogonal(transposed, squares, {size.columns, size.rows}, 5, 1);
    for (int64_t r = 0; r < size.rows; ++r)
      for (int64_t c = 0; c < size.columns; ++c)
        ASSERT_EQ(one[at(r, c, size.columns)], other[at(c, r, size.rows)]) << size.rows;
  }
}

}  // namespace
}  // namespace lockstep::optim
