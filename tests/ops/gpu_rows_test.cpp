// GPU kernels that share out rows and columns among threads, at sizes where they do it differently: by warps
// or blocks, in registers or not, in packs or one by one.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "ops/gpu_memory.h"
#include "ops/op_cases.h"

namespace lockstep::testing {
namespace {

struct Sized {
  const char* name;
  Op op;
  std::vector<TensorSpec> inputs;
  int64_t batch;
  bool in_all_types = true;
};

/// Sized cases in the element types and how far two kernels may differ in them.
struct RowsCase {
  Sized sized;
  DType dtype;
  double tolerance;
};

void PrintTo(const RowsCase& c, std::ostream* out) { *out << c.sized.name; }

TensorSpec labels(Shape shape) { return {std::move(shape), DType::int32}; }

std::vector<RowsCase> cases() {
  const LayerNorm layer_norm;
  const SoftmaxCrossEntropy loss{.ignore_index = 3}, mixed{.ignore_index = 3, .label_smoothing = 0.25f};
  const Pool2d max{.kernel = 3, .stride = 2, .padding = 1}, overlapping{.kernel = 3, .stride = 1},
      average{.kind = PoolKind::average, .kernel = 3, .stride = 2, .padding = 1},
      counted{.kind = PoolKind::average, .kernel = 3, .stride = 2, .padding = 1, .count_include_pad = true};
  const Sized sized[] = {
      {"layer_norm_8", layer_norm, {{{2051, 8}}}, 2},  // warps with several rows
      {"layer_norm_256", layer_norm, {{{3, 256}}}, 1},
      {"layer_norm_264", layer_norm, {{{11, 264}}}, 1},
      {"layer_norm_768", layer_norm, {{{19, 768}}}, 1},
      {"layer_norm_1000", LayerNorm{.bias = false}, {{{9, 1000}}}, 1},
      {"layer_norm_1023", layer_norm, {{{3, 1023}}}, 1},
      {"layer_norm_1024", layer_norm, {{{3, 1024}}}, 1},
      {"layer_norm_1025", layer_norm, {{{3, 1025}}}, 1},
      {"layer_norm_1032", layer_norm, {{{517, 1032}}}, 1, false},  // blocks with several rows
      {"layer_norm_4096", layer_norm, {{{3, 4096}}}, 1},
      {"layer_norm_4097", LayerNorm{.bias = false}, {{{3, 4097}}}, 1},
      {"layer_norm_8192", layer_norm, {{{2, 8192}}}, 1},
      {"layer_norm_8200", layer_norm, {{{259, 8200}}}, 1, false},  // beyond registers, and several rows
      {"layer_norm_16385", layer_norm, {{{2, 16385}}}, 1, false},
      {"rms_norm_8", RmsNorm{}, {{{2051, 8}}}, 2},
      {"rms_norm_264", RmsNorm{}, {{{11, 264}}}, 1},
      {"rms_norm_1023", RmsNorm{}, {{{3, 1023}}}, 1},
      {"rms_norm_1032", RmsNorm{}, {{{517, 1032}}}, 1, false},  // blocks with several rows
      {"rms_norm_8200", RmsNorm{}, {{{259, 8200}}}, 1, false},
      {"loss_mixed_2048", mixed, {{{5, 2048}}, labels({5}), labels({5, 2})}, 1},
      {"loss_mixed_4097", mixed, {{{5, 4097}}, labels({5}), labels({5, 2})}, 1},
      {"loss_2048", loss, {{{5, 2048}}, labels({5})}, 1},
      {"loss_2049", loss, {{{5, 2049}}, labels({5})}, 1},
      {"loss_4097", loss, {{{5, 4097}}, labels({5})}, 1},
      {"loss_8192", loss, {{{3, 8192}}, labels({3})}, 1},
      {"loss_50257", loss, {{{9, 50257}}, labels({9})}, 1},
      {"loss_50304", loss, {{{2, 50304}}, labels({2})}, 1},
      {"loss_of_many", loss, {{{1100, 10}}, labels({1100})}, 3},
      {"batch_norm_8", BatchNorm{}, {{{31, 31, 8}}}, 3},
      {"batch_norm_264", BatchNorm{}, {{{9, 9, 264}}}, 3},  // tiles of 32 and 1 packs, or of 17 and 16
      {"batch_norm_1000", BatchNorm{}, {{{1000}}}, 300},
      {"batch_norm_long", BatchNorm{}, {{{257, 263, 3}}}, 1},
      {"max_16", max, {{{9, 12, 16}}}, 2},
      {"max_overlapping_16", overlapping, {{{9, 8, 16}}}, 2},
      {"max_wide", max, {{{3, 70, 64}}}, 2},
      {"average_16", average, {{{9, 12, 16}}}, 2},
      {"upsample_16", Upsample2d{.kind = UpsampleKind::bilinear, .scale = 2}, {{{9, 12, 16}}}, 2},
      // Rows of more packs than a block has threads, in both directions.
      {"upsample_wide",
       Upsample2d{.kind = UpsampleKind::bilinear, .height = 3, .width = 310},
       {{{5, 300, 8}}},
       2},
      {"upsample_nearest_wide", Upsample2d{.height = 2, .width = 700}, {{{3, 290, 5}}}, 1},
      {"average_counting_padding_16", counted, {{{9, 12, 16}}}, 2},
      {"global_264", GlobalPool2d{}, {{{7, 7, 264}}}, 3},
      {"global_long", GlobalPool2d{}, {{{61, 67, 8}}}, 2},
  };
  std::vector<RowsCase> all;
  for (const Sized& s : sized)
    for (const auto& [dtype, tolerance] :
         {std::pair{DType::float32, 1e-5}, {DType::bfloat16, 1e-2}, {DType::float16, 1.5e-3}})
      if (s.in_all_types || dtype == DType::float32) all.push_back({s, dtype, tolerance});
  return all;
}

class GpuRows : public ::testing::TestWithParam<RowsCase> {};

TEST_P(GpuRows, AgreesWithTheCpuKernel) {
  const auto& [sized, dtype, tolerance] = GetParam();
  OpCase c{.name = sized.name, .op = sized.op, .inputs = sized.inputs, .batch = sized.batch};
  c.options.compute = dtype;
  c.options.loss_weight = 0.5;
  c.int32_below = sized.inputs[0].shape[-1];
  c.prepare = [](std::vector<Array>& inputs) {
    // Logits far enough apart that some probabilities are large, and images with equal values.
    for (size_t i = 0; i < inputs[0].values.size(); ++i)
      inputs[0].values[i] =
          inputs.size() > 1 ? 20 * inputs[0].values[i] : std::round(64 * inputs[0].values[i]) / 32;
    // Shares of second classes: any part of the label.
    const auto classes = static_cast<double>(inputs[0].shape.dims().back());
    for (size_t i = 1; inputs.size() > 2 && i < inputs[2].values.size(); i += 2)
      inputs[2].values[i] = std::floor(inputs[2].values[i] * kWholeShare / classes);
  };
  auto gpu = make_harness(c, device::DeviceKind::cuda), cpu = make_harness(c, device::DeviceKind::cpu);
  const auto compare = [&](const std::vector<Tensor>& actual, const std::vector<Tensor>& expected,
                           const char* what) {
    for (size_t i = 0; i < expected.size(); ++i)
      if (expected[i].data != nullptr)
        expect_near(values_of(actual[i]), values_of(expected[i]), tolerance, what + std::to_string(i));
  };
  gpu->forward();
  cpu->forward();
  compare(gpu->outputs, cpu->outputs, "output ");
  compare(gpu->auxiliary, cpu->auxiliary, "auxiliary ");
  if (cpu->signature().is_loss) {
    EXPECT_NEAR(gpu->metrics[ops::kLossSum], cpu->metrics[ops::kLossSum], 1e-6 * cpu->metrics[ops::kLossSum]);
    EXPECT_EQ(gpu->metrics[ops::kCount], cpu->metrics[ops::kCount]);
    EXPECT_EQ(gpu->metrics[ops::kCorrect], cpu->metrics[ops::kCorrect]);
  }
  gpu->backward();
  cpu->backward();
  compare(gpu->input_gradients, cpu->input_gradients, "gradient of input ");
  compare(gpu->parameter_gradients, cpu->parameter_gradients, "gradient of parameter ");
  const auto once = values_of_all(gpu->parameter_gradients);
  gpu->backward(true);
  const auto twice = values_of_all(gpu->parameter_gradients);
  for (size_t i = 0; i < once.size(); ++i)
    for (size_t k = 0; k < once[i].size(); ++k) ASSERT_EQ(twice[i][k], 2 * once[i][k]);
}

INSTANTIATE_TEST_SUITE_P(Sizes, GpuRows, ::testing::ValuesIn(cases()), [](const auto& info) {
  return info.param.sized.name + std::string("_") + std::string(name_of(info.param.dtype));
});

/// Rows of logits of one width, each with a label.
OpHarness rows_of_logits(int64_t rows, int64_t classes, DType dtype = DType::float32) {
  return OpHarness(SoftmaxCrossEntropy{}, {{Shape{classes}}, labels({})}, {.batch = rows, .compute = dtype},
                   device::DeviceKind::cuda);
}

constexpr DType kRowsTypes[] = {DType::float32, DType::bfloat16, DType::float16};

TEST(GpuSoftmaxCrossEntropy, BitsOfARowDoNotDependOnItsPlace) {
  for (const DType dtype : kRowsTypes)
    for (const int64_t classes : {9, 4097}) {
      constexpr int64_t kRows = 9;
      const auto row = random_values(classes, 5, -4, 4);
      std::vector<double> logits;
      for (int64_t i = 0; i < kRows; ++i) logits.insert(logits.end(), row.begin(), row.end());
      OpHarness many = rows_of_logits(kRows, classes, dtype), one = rows_of_logits(1, classes, dtype);
      fill(many.inputs[0], logits);
      fill(many.inputs[1], 7.0);
      fill(one.inputs[0], row);
      fill(one.inputs[1], 7.0);
      for (OpHarness* harness : {&many, &one}) {
        harness->forward();
        harness->backward();
      }
      EXPECT_EQ(many.metrics[ops::kLossSum], kRows * one.metrics[ops::kLossSum]);
      const auto lse = values_of(one.auxiliary[0])[0];
      for (const double value : values_of(many.auxiliary[0])) EXPECT_EQ(value, lse);
      const auto gradients = values_of(many.input_gradients[0]), gradient = values_of(one.input_gradients[0]);
      for (int64_t i = 0; i < kRows * classes; ++i)
        ASSERT_EQ(gradients[static_cast<size_t>(i)], gradient[static_cast<size_t>(i % classes)]) << i;
    }
}

std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

/// What a loss makes of logits: bits of metrics, log-sum-exps and the gradient. `soft`: labels are smoothed
/// and mixed.
std::vector<std::vector<uint32_t>> loss_and_gradient(const TestedGpu& gpu, const std::vector<float>& logits,
                                                     int64_t classes, DType dtype, bool in_place, bool soft) {
  const auto rows = static_cast<int64_t>(logits.size()) / classes;
  const device::Buffer x = gpu.upload(logits, dtype), dx = gpu.upload(logits, dtype);
  std::vector<int32_t> label_values, mixture_values;
  for (int64_t i = 0; i < rows; ++i)
    // One row is ignored; one has a label that is no class, so that its loss and gradient are NaN.
    label_values.push_back(static_cast<int32_t>(i % 5 == 4 ? -1 : i == 2 ? classes : i * 7 % classes));
  for (int64_t i = 0; i < rows; ++i)
    mixture_values.insert(mixture_values.end(),
                          {static_cast<int32_t>((3 * i + 1) % classes), kWholeShare / 3});
  const ops::StepConstants constant_values{.loss_scale = 8};
  const device::Buffer classes_of_rows = gpu.device->allocate(rows * 4),
                       mixtures = gpu.device->allocate(rows * 8), lse = gpu.device->allocate(rows * 4),
                       metrics = gpu.device->allocate(ops::kMetricCount * 8),
                       constants = gpu.device->allocate(sizeof constant_values);
  gpu.device->copy_now(classes_of_rows.data(), label_values.data(), classes_of_rows.size_bytes());
  gpu.device->copy_now(mixtures.data(), mixture_values.data(), mixtures.size_bytes());
  gpu.device->copy_now(constants.data(), &constant_values, constants.size_bytes());
  const Tensor inputs[] = {{x.data(), {rows, classes}, dtype},
                           {classes_of_rows.data(), {rows}, DType::int32},
                           {mixtures.data(), {rows, 2}, DType::int32}},
               gradients[] = {{in_place ? x.data() : dx.data(), {rows, classes}, dtype}, Tensor{}, Tensor{}},
               auxiliary[] = {{lse.data(), {rows}}};
  std::vector<TensorSpec> specs{{Shape{classes}}, labels({})};
  if (soft) specs.push_back(labels({2}));
  const auto kernel = ops::make_kernel(
      device::DeviceKind::cuda, SoftmaxCrossEntropy{.label_smoothing = soft ? 0.125f : 0.0f}, specs,
      {.batch = rows, .loss_weight = 0.25, .compute = dtype, .fused = {.gradient_in_forward = in_place}});
  kernel->prepare(*gpu.device);
  const device::Buffer workspace = gpu.device->allocate(kernel->workspace_bytes(ops::KernelPhase::forward));
  ops::KernelArguments arguments{.inputs = std::span(inputs, specs.size()),
                                 .auxiliary = auxiliary,
                                 .metrics = reinterpret_cast<double*>(metrics.data()),
                                 .workspace = workspace.data(),
                                 .constants = reinterpret_cast<const ops::StepConstants*>(constants.data())};
  if (in_place) arguments.input_gradients = gradients;
  kernel->forward(arguments, *gpu.stream);
  arguments.input_gradients = gradients;
  if (!in_place) kernel->backward_input(arguments, *gpu.stream);
  return {bits_of(gpu.download(metrics, 2 * ops::kMetricCount)),
          bits_of(gpu.download(lse, static_cast<size_t>(rows))),
          bits_of(gpu.download(in_place ? x : dx, logits.size(), dtype))};
}

TEST(GpuSoftmaxCrossEntropy, AGradientInTheLogitsPlaceHasTheSameBits) {
  const TestedGpu gpu;
  for (const DType dtype : kRowsTypes)
    for (const int64_t classes : {9, 64, 4096, 4097}) {
      std::vector<float> logits;
      for (const double value : random_values(6 * classes, 11, -4, 4))
        logits.push_back(static_cast<float>(value));
      for (const bool soft : {false, true})
        EXPECT_EQ(loss_and_gradient(gpu, logits, classes, dtype, true, soft),
                  loss_and_gradient(gpu, logits, classes, dtype, false, soft))
            << name_of(dtype) << " " << classes << " " << soft;
    }
}

TEST(GpuSoftmaxCrossEntropy, EqualLogitsAreEquallyLikely) {
  for (const int64_t classes : {10, 50257}) {
    OpHarness harness = rows_of_logits(3, classes);
    fill(harness.inputs[0], -1000);
    fill(harness.inputs[1], {0, 5, static_cast<double>(classes - 1)});
    harness.forward();
    EXPECT_NEAR(harness.metrics[ops::kLossSum], 3 * std::log(static_cast<double>(classes)), 1e-5);
    EXPECT_EQ(harness.metrics[ops::kCorrect], 1);
    harness.backward();
    const double share = 1.0 / static_cast<double>(classes);
    const auto gradient = values_of(harness.input_gradients[0]);
    for (int64_t i = 0; i < 3 * classes; ++i) {
      const bool is_label = i == 0 || i == classes + 5 || i == 3 * classes - 1;
      // What is kept of a log-sum-exp near -1000 is good to 2^-15.
      ASSERT_NEAR(gradient[static_cast<size_t>(i)], is_label ? share - 1 : share,
                  is_label ? 1e-7 + 5e-5 * share : 5e-5 * share)
          << i;
    }
  }
}

TEST(GpuSoftmaxCrossEntropy, LargeLogitsDoNotOverflow) {
  for (const int64_t classes : {7, 4099}) {
    std::vector<double> logits(static_cast<size_t>(classes), -3e38);
    logits[2] = logits[6] = 3e38;
    OpHarness harness = rows_of_logits(1, classes);
    fill(harness.inputs[0], logits);
    fill(harness.inputs[1], 6);
    harness.forward();
    EXPECT_NEAR(harness.metrics[ops::kLossSum], std::log(2.0), 1e-6);
  }
}

TEST(GpuSoftmaxCrossEntropy, ALogitThatIsNoNumberShowsWhereverItStands) {
  for (const int64_t classes : {11, 4099})
    for (const double bad : {std::nan(""), HUGE_VAL})
      for (const int64_t place : {int64_t{0}, int64_t{9}, classes / 2, classes - 1}) {
        OpHarness harness = rows_of_logits(3, classes);
        auto logits = random_values(3 * classes, 2);
        logits[static_cast<size_t>(classes + place)] = bad;
        fill(harness.inputs[0], logits);
        fill(harness.inputs[1], 1);
        harness.forward();
        EXPECT_TRUE(std::isnan(harness.metrics[ops::kLossSum])) << place;
        harness.backward();
        const auto gradient = values_of(harness.input_gradients[0]);
        for (int64_t i = 0; i < 3 * classes; ++i)
          ASSERT_EQ(std::isnan(gradient[static_cast<size_t>(i)]), i / classes == 1) << i;
      }
}

TEST(GpuSoftmaxCrossEntropy, ExcludedClassesAreNeverLikely) {
  for (const int64_t classes : {11, 4099}) {
    std::vector<double> logits(static_cast<size_t>(classes), -INFINITY);
    logits[0] = logits[3] = 1;
    OpHarness harness = rows_of_logits(1, classes);
    fill(harness.inputs[0], logits);
    fill(harness.inputs[1], 0.0);
    harness.forward();
    EXPECT_NEAR(harness.metrics[ops::kLossSum], std::log(2.0), 1e-6);
    EXPECT_EQ(harness.metrics[ops::kCorrect], 1);
    harness.backward();
    std::vector<double> expected(static_cast<size_t>(classes), 0);
    expected[0] = -0.5, expected[3] = 0.5;
    expect_near(values_of(harness.input_gradients[0]), expected, 1e-6, "gradient");
  }
}

TEST(GpuSoftmaxCrossEntropy, TiesGoToTheLowestClassWhereverTheyAre) {
  for (const int64_t classes : {40, 50257}) {
    const int64_t places[] = {0, 1, 17, 33, classes / 2, classes - 2, classes - 1};
    for (const int64_t first : places)
      for (const int64_t second : places) {
        if (first >= second) continue;
        std::vector<double> logits(static_cast<size_t>(2 * classes), -1);
        for (const int64_t place : {first, second})
          for (const int64_t row : {0, 1}) logits[static_cast<size_t>(row * classes + place)] = 2;
        OpHarness harness = rows_of_logits(2, classes);
        fill(harness.inputs[0], logits);
        fill(harness.inputs[1], {static_cast<double>(first), static_cast<double>(second)});
        harness.forward();
        ASSERT_EQ(harness.metrics[ops::kCorrect], 1) << first << " and " << second;
      }
  }
}

TEST(GpuSoftmaxCrossEntropy, ALabelThatIsNoClassIsNotANumber) {
  for (const int64_t classes : {10, 4097}) {
    OpHarness harness = rows_of_logits(3, classes);
    fill(harness.inputs[0], random_values(3 * classes, 4));
    fill(harness.inputs[1], {1, static_cast<double>(classes), 2});
    harness.forward();
    EXPECT_TRUE(std::isnan(harness.metrics[ops::kLossSum]));
    EXPECT_EQ(harness.metrics[ops::kCount], 3);
    harness.backward();
    const auto gradient = values_of(harness.input_gradients[0]);
    for (int64_t i = 0; i < 3 * classes; ++i)
      ASSERT_EQ(std::isnan(gradient[static_cast<size_t>(i)]), i / classes == 1) << i;
  }
}

TEST(GpuSoftmaxCrossEntropy, CuttingABatchOfManyRowsChangesNoBitOfTheLoss) {
  constexpr int64_t kRows = 1500, kClasses = 5;
  const auto logits = random_values(kRows * kClasses, 8, -6, 6);
  OpHarness whole = rows_of_logits(kRows, kClasses), part = rows_of_logits(kRows / 5, kClasses);
  fill(whole.inputs[0], logits);
  fill(whole.inputs[1], 2);
  whole.forward();
  fill(part.inputs[1], 2);
  for (int i = 0; i < 5; ++i) {
    const auto begin = logits.begin() + i * kRows / 5 * kClasses;
    fill(part.inputs[0], {begin, begin + kRows / 5 * kClasses});
    part.forward(i > 0);
  }
  EXPECT_EQ(part.metrics[ops::kLossSum], whole.metrics[ops::kLossSum]);
  EXPECT_EQ(part.metrics[ops::kCount], kRows);
}

/// Channels whose values lie far from zero, and whose first value lies far from the others.
TEST(GpuBatchNorm, StatisticsSurviveALargeMeanAndAnOutlier) {
  constexpr int64_t kRows = 5000, kChannels = 8;
  OpHarness harness(BatchNorm{}, {{Shape{kChannels}}}, {.batch = kRows}, device::DeviceKind::cuda);
  std::vector<double> x(kRows * kChannels);
  for (int64_t row = 0; row < kRows; ++row)
    for (int64_t c = 0; c < kChannels; ++c)
      x[static_cast<size_t>(row * kChannels + c)] = row % 2 == 0 ? 16384 : 16385;
  for (int64_t c = 4; c < kChannels; ++c) x[static_cast<size_t>(c)] = -1000;
  fill(harness.inputs[0], x);
  for (const Tensor& parameter : harness.parameters) fill(parameter, 1);
  fill(harness.output_gradients[0], 0.0);
  harness.forward();
  harness.backward();
  // Sums of the outlier's channels: 16384.5 for each row, less 17384 for the first.
  const double outlier_mean = 16384.5 - 17384.0 / kRows;
  const double squares = (kRows / 2 - 1) * std::pow(16384 - outlier_mean, 2) +
                         kRows / 2 * std::pow(16385 - outlier_mean, 2) + std::pow(-1000 - outlier_mean, 2);
  const auto mean = values_of(harness.parameter_gradients[2]),
             variance = values_of(harness.parameter_gradients[3]);
  for (size_t c = 0; c < kChannels; ++c) {
    EXPECT_NEAR(mean[c], c < 4 ? 16384.5 : outlier_mean, 1e-3) << c;
    const double expected = c < 4 ? 0.25 * kRows / (kRows - 1) : squares / (kRows - 1);
    EXPECT_NEAR(variance[c], expected, 1e-5 * expected) << c;
  }
}

}  // namespace
}  // namespace lockstep::testing
