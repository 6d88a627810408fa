// Kernels at sizes that indices of 32 bits do not reach: the logits of 64 texts of 1024 tokens are 3.3
// billion.

#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "ops/gpu_memory.h"
#include "ops/op.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kWidth = 64, kClasses = 50304;
using Values = std::vector<float>;

/// Equal rows of logits, which hold more than 2^31 numbers. On the emulated GPU, which is slow, only three
/// rows.
class LargeLogits : public ::testing::Test {
 protected:
  device::Buffer allocate(int64_t elements, int64_t each = size_of(DType::bfloat16)) const {
    return gpu.device->allocate(elements * each);
  }
  static Tensor tensor(const device::Buffer& buffer, Shape shape, DType dtype = DType::bfloat16) {
    return {buffer.data(), std::move(shape), dtype};
  }
  Tensor rows_of(const device::Buffer& buffer) const { return tensor(buffer, {rows, kClasses}); }

  void run(const Op& op, const std::vector<TensorSpec>& inputs, ops::KernelPhase phase,
           ops::KernelArguments arguments) {
    const auto kernel =
        ops::make_kernel(device::DeviceKind::cuda, op, inputs, {.batch = rows, .compute = DType::bfloat16});
    kernel->prepare(*gpu.device);
    const device::Buffer workspace = gpu.device->allocate(kernel->workspace_bytes(phase));
    arguments.workspace = workspace.data();
    if (phase == ops::KernelPhase::forward)
      kernel->forward(arguments, *gpu.stream);
    else
      kernel->backward_input(arguments, *gpu.stream);
    gpu.stream->synchronize();
  }

  Values row(const device::Buffer& buffer, int64_t number) const {
    std::vector<bfloat16> row(kClasses);
    const int64_t bytes = kClasses * size_of(DType::bfloat16);
    gpu.device->copy_now(row.data(), buffer.data() + number * bytes, bytes);
    Values values;
    for (const bfloat16 value : row) values.push_back(static_cast<float>(value));
    return values;
  }
  void expect_equal_rows(const device::Buffer& buffer, const char* what) const {
    const Values first = row(buffer, 0);
    EXPECT_NE(first, Values(kClasses, 0.0f)) << what;
    EXPECT_TRUE(row(buffer, rows - 1) == first) << what;
  }

  const TestedGpu gpu;
  const int64_t rows = gpu.device->description() == "emulated GPU" ? 3 : (int64_t{1} << 31) / kClasses + 2;
};

TEST_F(LargeLogits, AreComputedAndDifferentiatedToTheLastRow) {
  device::Buffer logits, gradients;
  try {
    logits = allocate(rows * kClasses);
    gradients = allocate(rows * kClasses);
  } catch (const DeviceError& error) {
    GTEST_SKIP() << error.what();
  }
  const Values one_x = small_numbers(kWidth, 1);
  Values x_values, weights = small_numbers(kClasses * kWidth, 2);
  for (int64_t i = 0; i < rows; ++i) x_values.insert(x_values.end(), one_x.begin(), one_x.end());
  for (float& weight : weights) weight /= 64;
  const device::Buffer x = gpu.upload(x_values, DType::bfloat16),
                       table = gpu.upload(weights, DType::bfloat16);

  const Tensor x_rows = tensor(x, {rows, kWidth}), table_rows = tensor(table, {kClasses, kWidth});
  const Tensor logit_rows = rows_of(logits), gradient_rows = rows_of(gradients);
  run(Linear{.units = kClasses, .bias = false}, {{Shape{kWidth}}}, ops::KernelPhase::forward,
      {.inputs = {&x_rows, 1}, .outputs = {&logit_rows, 1}, .parameters = {&table_rows, 1}});
  expect_equal_rows(logits, "logits");

  run(Relu{}, {{Shape{kClasses}}}, ops::KernelPhase::forward,
      {.inputs = {&logit_rows, 1}, .outputs = {&gradient_rows, 1}});
  expect_equal_rows(gradients, "relu of the logits");

  const std::vector<int32_t> label_values(static_cast<size_t>(rows), 7);
  const device::Buffer labels = allocate(rows, sizeof(int32_t)), log_sum_exps = allocate(rows, sizeof(float)),
                       metrics = allocate(ops::kMetricCount, sizeof(double)),
                       constants = allocate(1, sizeof(ops::StepConstants));
  gpu.device->copy_now(labels.data(), label_values.data(), labels.size_bytes());
  const ops::StepConstants constant_values;
  gpu.device->copy_now(constants.data(), &constant_values, constants.size_bytes());
  const Tensor inputs[] = {logit_rows, tensor(labels, {rows}, DType::int32)},
               input_gradients[] = {gradient_rows, Tensor{}},
               log_sum_exp_rows = tensor(log_sum_exps, {rows}, DType::float32);
  const std::vector<TensorSpec> specs{{Shape{kClasses}}, {Shape{}, DType::int32}};
  const ops::KernelArguments arguments{
      .inputs = inputs,
      .auxiliary = {&log_sum_exp_rows, 1},
      .input_gradients = input_gradients,
      .metrics = reinterpret_cast<double*>(metrics.data()),
      .constants = reinterpret_cast<const ops::StepConstants*>(constants.data())};
  run(SoftmaxCrossEntropy{}, specs, ops::KernelPhase::forward, arguments);
  const Values found = gpu.download(log_sum_exps, static_cast<size_t>(rows));
  EXPECT_GT(found.front(), 0);
  EXPECT_EQ(found, Values(static_cast<size_t>(rows), found.front()));
  run(SoftmaxCrossEntropy{}, specs, ops::KernelPhase::backward_input, arguments);
  expect_equal_rows(gradients, "gradient of the logits");
  EXPECT_LT(row(gradients, rows - 1)[7], 0);
}

}  // namespace
}  // namespace lockstep::testing
