#include "run/step_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/half.h"
#include "lockstep/error.h"

namespace lockstep::run {
namespace {

/// Memory of a device with what a test put there.
class Memory {
 public:
  explicit Memory(device::DeviceKind kind)
      : device_(kind == device::DeviceKind::cuda ? device::make_cuda_device(0) : device::make_cpu_device()),
        stream_(device_->create_stream("compute")),
        kernels_(make_step_kernels(kind)) {}

  template <class T>
  T* put(const std::vector<T>& values, int64_t skip = 0) {
    buffers_.push_back(device_->allocate(static_cast<int64_t>(values.size() * sizeof(T)) + skip));
    std::byte* at = buffers_.back().data() + skip;
    device_->copy_now(at, values.data(), static_cast<int64_t>(values.size() * sizeof(T)));
    return reinterpret_cast<T*>(at);
  }
  template <class T>
  std::vector<T> get(const T* at, size_t count) {
    stream_->synchronize();
    std::vector<T> values(count);
    device_->copy_now(values.data(), at, static_cast<int64_t>(count * sizeof(T)));
    return values;
  }
  StepKernels& kernels() { return *kernels_; }
  device::Stream& stream() { return *stream_; }

 private:
  std::unique_ptr<device::Device> device_;
  std::vector<device::Buffer> buffers_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<StepKernels> kernels_;
};

std::vector<float> numbers(size_t count, int seed) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] =
        static_cast<float>(static_cast<int>((i * 7919 + static_cast<size_t>(seed) * 104729) % 2001) - 1000) /
        1000.0f;
  return values;
}

class StepKernelsTest : public ::testing::TestWithParam<device::DeviceKind> {
 protected:
  void SetUp() override {
    if (GetParam() == device::DeviceKind::cuda && device::probe_gpus().devices.empty())
      GTEST_SKIP() << device::probe_gpus().problem << ": ONLY_SKIPPED_TESTS";
  }
};

TEST_P(StepKernelsTest, AddsAnywhere) {
  for (const int64_t skip : {0, 4, 8}) {
    Memory memory(GetParam());
    const auto a = numbers(1031, 1), b = numbers(1031, 2);
    float* to = memory.put(a, skip);
    memory.kernels().add(to, memory.put(b), DType::float32, 1031, memory.stream());
    const auto sum = memory.get(to, a.size());
    for (size_t i = 0; i < a.size(); ++i)
      ASSERT_EQ(sum[i], a[i] + b[i]) << i << ", " << skip << " bytes from an aligned place";
  }
}

TEST(CpuStepKernels, OnSeveralThreadsGiveTheSameBits) {
  constexpr int64_t kCount = 3 * layout::kNormChunk + 1031;
  const auto a = numbers(kCount, 1), b = numbers(kCount, 2);
  const auto device = device::make_cpu_device();
  const auto stream = device->create_stream("compute");
  std::vector<std::vector<float>> sums, widened, residuals;
  std::vector<std::vector<double>> squares;
  for (const int threads : {1, 3}) {
    const auto kernels = make_cpu_step_kernels(threads);
    kernels->add(sums.emplace_back(a).data(), b.data(), DType::float32, kCount, *stream);
    NormCall call{.pieces = {{b.data(), kCount, 0}}, .weight_chunks = 4, .chunks = 4};
    call.sums = squares.emplace_back(4, -1.0).data();
    kernels->sum_squares(call, *stream);
    std::vector<bfloat16> narrow(kCount);
    kernels->cast(narrow.data(), DType::bfloat16, a.data(), DType::float32, kCount, *stream);
    kernels->cast(widened.emplace_back(kCount).data(), DType::float32, narrow.data(), DType::bfloat16, kCount,
                  *stream);
    kernels->round_with_feedback(narrow.data(), DType::bfloat16, a.data(), residuals.emplace_back(b).data(),
                                 kCount, *stream);
  }
  EXPECT_EQ(residuals[0], residuals[1]);
  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_EQ(widened[0], widened[1]);
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(widened[1][i], static_cast<float>(bfloat16(a[i]))) << i;
  EXPECT_EQ(squares[0], squares[1]);
  EXPECT_GT(squares[0][3], 0);
}

/// Processors that update beside GPUs.
TEST_P(StepKernelsTest, SquaresAreSummedAsGpusDo) {
  if (GetParam() != device::DeviceKind::cuda) GTEST_SKIP() << "compares with a GPU";
  constexpr int64_t kChunks = 1100, kRest = 4099;
  for (const int64_t count : {int64_t{1}, int64_t{3}, int64_t{4}, int64_t{5003}, layout::kNormChunk,
                              (kChunks - 1) * int64_t{1024} + kRest}) {
    const auto values = numbers(static_cast<size_t>(count), 5);
    const int64_t chunks = (count + layout::kNormChunk - 1) / layout::kNormChunk;
    Memory memory(GetParam());
    NormCall call{.pieces = {{memory.put(values), count, 0}}, .weight_chunks = chunks, .chunks = chunks};
    call.sums = memory.put(std::vector<double>(static_cast<size_t>(chunks)));
    memory.kernels().sum_squares(call, memory.stream());
    const auto expected = memory.get(call.sums, static_cast<size_t>(chunks));

    const auto device = device::make_cpu_device();
    const auto stream = device->create_stream("compute");
    std::vector<double> sums(static_cast<size_t>(chunks));
    NormCall own{.pieces = {{values.data(), count, 0}}, .weight_chunks = chunks, .chunks = chunks};
    own.sums = sums.data();
    make_cpu_step_kernels(1, SumOrder::as_gpus)->sum_squares(own, *stream);
    EXPECT_EQ(sums, expected) << count;
  }
}

TEST_P(StepKernelsTest, CastsRoundToNearest) {
  Memory memory(GetParam());
  const auto values = numbers(517, 3);
  auto* narrow = memory.put(std::vector<bfloat16>(values.size()));
  auto* half = memory.put(std::vector<float16>(values.size()));
  auto* wide = memory.put(std::vector<float>(values.size()));
  const float* from = memory.put(values);
  const auto count = static_cast<int64_t>(values.size());
  memory.kernels().cast(narrow, DType::bfloat16, from, DType::float32, count, memory.stream());
  memory.kernels().cast(half, DType::float16, from, DType::float32, count, memory.stream());
  memory.kernels().cast(wide, DType::float32, narrow, DType::bfloat16, count, memory.stream());
  const auto narrowed = memory.get(narrow, values.size());
  const auto halved = memory.get(half, values.size());
  const auto widened = memory.get(wide, values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(narrowed[i].bits, bfloat16(values[i]).bits) << i;
    ASSERT_EQ(halved[i].bits, float16(values[i]).bits) << i;
    ASSERT_EQ(widened[i], static_cast<float>(bfloat16(values[i]))) << i;
  }
}

struct Rounded {
  std::vector<uint16_t> bits;
  std::vector<float> residuals;
};

/// Rounds `values` to bfloat16, from `skip` bytes behind an aligned place on.
Rounded rounded(device::DeviceKind kind, const std::vector<float>& values,
                const std::vector<float>& residuals, int64_t skip = 0) {
  Memory memory(kind);
  const size_t count = values.size();
  auto* to = memory.put(std::vector<bfloat16>(count), skip / 2);
  float* kept = memory.put(residuals, skip);
  memory.kernels().round_with_feedback(to, DType::bfloat16, memory.put(values, skip), kept,
                                       static_cast<int64_t>(count), memory.stream());
  Rounded result{.bits = {}, .residuals = memory.get(kept, count)};
  for (const bfloat16 value : memory.get(to, count)) result.bits.push_back(value.bits);
  return result;
}

TEST_P(StepKernelsTest, RoundsWithFeedback) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kMost = std::numeric_limits<float>::max(),
                  kNan = std::numeric_limits<float>::quiet_NaN();
  struct Case {
    float value, residual, narrow, kept;
  };
  // From 1 on bfloat16 goes on in steps of 2^-7.
  const std::vector<Case> cases = {{1, 0, 1, 0},
                                   {1 + 0x1p-9f, 0, 1, 0x1p-9f},
                                   {1 + 0x1p-9f, 0x1p-8f, 1 + 0x1p-7f, -0x1p-9f},
                                   {1 + 0x1p-9f, -0x1p-9f, 1, 0},
                                   {1, 0x1p-8f, 1, 0x1p-8f},  // halfway: to even
                                   {1 + 0x1p-7f, 0x1p-8f, 1 + 0x1p-6f, -0x1p-8f},
                                   {-1 - 0x1p-9f, 0, -1, -0x1p-9f},
                                   {0, 0x1p-30f, 0x1p-30f, 0},
                                   {0x1p-140f, 0, 0, 0x1p-140f},
                                   {kMost, 0, kInf, 0},
                                   {kMost, kMost, kInf, 0},
                                   {-kMost, 0, -kInf, 0},
                                   {kInf, 0x1p-9f, kInf, 0},
                                   {-kInf, 0x1p-9f, -kInf, 0},
                                   {kNan, 0x1p-9f, kNan, 0},
                                   {1, kNan, kNan, 0}};
  std::vector<float> values, residuals;
  for (const Case& one : cases) {
    values.push_back(one.value);
    residuals.push_back(one.residual);
  }
  const Rounded result = rounded(GetParam(), values, residuals);
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(result.bits[i], bfloat16(cases[i].narrow).bits) << i;
    EXPECT_EQ(std::bit_cast<uint32_t>(result.residuals[i]), std::bit_cast<uint32_t>(cases[i].kept)) << i;
  }
}

TEST_P(StepKernelsTest, RoundsWithFeedbackWhateverLiesWherever) {
  for (const size_t count : std::vector<size_t>{1, 3, 4, 261, 4097})
    for (const int64_t skip : {0, 4, 8}) {
      const auto values = numbers(count, 4), residuals = numbers(count, 9);
      const Rounded result = rounded(GetParam(), values, residuals, skip);
      for (size_t i = 0; i < count; ++i) {
        const float wanted = values[i] + residuals[i];
        ASSERT_EQ(result.bits[i], bfloat16(wanted).bits) << i << " of " << count;
        ASSERT_EQ(result.residuals[i], wanted - static_cast<float>(bfloat16(wanted))) << i << " of " << count;
      }
    }
}

/// A gradient whose rounding always loses the same: without feedback nothing of that ever arrives.
TEST_P(StepKernelsTest, FeedbackBringsTheWholeSum) {
  constexpr int kSteps = 2000;
  const std::vector<float> gradient{1 + 0x1p-17f, -1 - 0x1p-17f, 3 + 0x1p-9f, 0x1p-20f + 0x1p-30f, 1};
  std::vector<float> residuals(gradient.size(), 0);
  std::vector<double> sums(gradient.size(), 0);
  Memory memory(GetParam());
  const auto count = static_cast<int64_t>(gradient.size());
  auto* to = memory.put(std::vector<bfloat16>(gradient.size()));
  float* kept = memory.put(residuals);
  const float* from = memory.put(gradient);
  for (int step = 0; step < kSteps; ++step) {
    memory.kernels().round_with_feedback(to, DType::bfloat16, from, kept, count, memory.stream());
    const auto narrow = memory.get(to, gradient.size());
    for (size_t i = 0; i < gradient.size(); ++i) sums[i] += double{static_cast<float>(narrow[i])};
  }
  residuals = memory.get(kept, gradient.size());
  for (size_t i = 0; i < gradient.size(); ++i) {
    EXPECT_EQ(sums[i] + residuals[i], kSteps * double{gradient[i]}) << i << ": nothing is lost";
    const double without = kSteps * double{static_cast<float>(bfloat16(gradient[i]))};
    EXPECT_EQ(without == kSteps * double{gradient[i]}, i == 4) << i;
    EXPECT_LE(std::abs(sums[i] - kSteps * double{gradient[i]}), std::abs(gradient[i]) / 128) << i;
  }
}

TEST_P(StepKernelsTest, CastsWhateverLiesWherever) {
  Memory memory(GetParam());
  const auto values = numbers(261, 5);
  const auto count = static_cast<int64_t>(values.size());
  for (int64_t element = 0; element < 5; ++element) {
    const float* from = memory.put(values, 4 * element);
    for (int64_t other = 0; other < 5; ++other) {
      auto* narrow = memory.put(std::vector<bfloat16>(values.size()), 2 * other);
      auto* wide = memory.put(std::vector<float>(values.size()), 4 * element);
      memory.kernels().cast(narrow, DType::bfloat16, from, DType::float32, count, memory.stream());
      memory.kernels().cast(wide, DType::float32, narrow, DType::bfloat16, count, memory.stream());
      const auto widened = memory.get(wide, values.size());
      for (size_t i = 0; i < values.size(); ++i)
        ASSERT_EQ(widened[i], static_cast<float>(bfloat16(values[i])))
            << i << " from element " << element << " to " << other;
    }
  }
}

TEST_P(StepKernelsTest, AgreesOnSumsInLeafOrderAndOnRequests) {
  Memory memory(GetParam());
  constexpr int64_t kBlock = 16 + 2 * 32;
  std::vector<std::byte> records(3 * kBlock);
  const double leaves[3][2][ops::kMetricCount] = {
      {{1, 2, 1, 0}, {0.5, 2, 0, 0}}, {{0.25, 1, 1, 0}, {}}, {{4, 3, 2, 0}, {8, 1, 1, 0}}};
  const program::AgreeRecord heads[3] = {{0, 2, 77}, {1, 1, 77}, {0, 2, 78}};
  for (int rank = 0; rank < 3; ++rank) {
    std::memcpy(records.data() + rank * kBlock, &heads[rank], 16);
    std::memcpy(records.data() + rank * kBlock + 16, leaves[rank], 64);
  }
  program::Verdict before;
  before.gradient_norm = 3;
  program::Verdict* verdict = memory.put(std::vector<program::Verdict>{before});
  const AgreementCall call{
      .records = memory.put(records), .block_bytes = kBlock, .ranks = 3, .compared = 3, .verdict = verdict};
  memory.kernels().agree(call, memory.stream());
  const program::Verdict agreed = memory.get(verdict, 1)[0];
  EXPECT_EQ(agreed.loss_sum, 13.75);
  EXPECT_EQ(agreed.count, 9);
  EXPECT_EQ(agreed.correct, 5);
  EXPECT_EQ(agreed.stop_requested, 1);
  EXPECT_EQ(agreed.replicas_differ, 1);
  EXPECT_EQ(agreed.gradient_norm, 3) << "that part is another instruction's";
}

TEST_P(StepKernelsTest, ComparesHashesAmongReplicasOfAStage) {
  const auto differ = [](std::vector<uint64_t> hashes, int compared) {
    Memory memory(GetParam());
    std::vector<program::AgreeRecord> records;
    for (const uint64_t hash : hashes) records.push_back({0, 0, hash});
    program::Verdict* verdict = memory.put(std::vector<program::Verdict>(1));
    const AgreementCall call{.records = reinterpret_cast<const std::byte*>(memory.put(records)),
                             .block_bytes = sizeof(program::AgreeRecord),
                             .ranks = static_cast<int>(hashes.size()),
                             .compared = compared,
                             .verdict = verdict};
    memory.kernels().agree(call, memory.stream());
    return memory.get(verdict, 1)[0].replicas_differ != 0;
  };
  EXPECT_FALSE(differ({1, 1, 2, 2}, 2));
  EXPECT_TRUE(differ({1, 1, 2, 2}, 4));
  EXPECT_TRUE(differ({1, 1, 2, 3}, 2));
  EXPECT_FALSE(differ({1, 2, 3, 4}, 1));
  EXPECT_FALSE(differ({0, 0, 0}, 3));
  EXPECT_TRUE(differ({0, 5}, 2)) << "whoever has a hash is compared with the first";
}

program::Verdict norm_of(device::DeviceKind kind, const std::vector<std::vector<float>>& weights,
                         const std::vector<float>& statistic, double clip) {
  Memory memory(kind);
  program::Verdict verdict;
  verdict.count = 8;
  StepScalars constants;
  constants.kernels.loss_scale = 4;
  NormCall call{.verdict = memory.put(std::vector<program::Verdict>{verdict}),
                .constants = memory.put(std::vector<StepScalars>{constants}),
                .static_count = 16,
                .clip_norm = clip};
  const auto add = [&](const std::vector<float>& values) {
    call.pieces.push_back({memory.put(values), static_cast<int64_t>(values.size()), call.chunks});
    call.chunks += (static_cast<int64_t>(values.size()) + layout::kNormChunk - 1) / layout::kNormChunk;
  };
  for (const auto& values : weights) add(values);
  call.weight_chunks = call.chunks;
  if (!statistic.empty()) add(statistic);
  call.sums = memory.put(std::vector<double>(static_cast<size_t>(call.chunks)));
  memory.kernels().sum_squares(call, memory.stream());
  memory.kernels().conclude_norm(call, memory.stream());
  return memory.get(call.verdict, 1)[0];
}

TEST_P(StepKernelsTest, NormIsOfAllWeightsAndClips) {
  const program::Verdict verdict = norm_of(GetParam(), {{3, 0, 0}, {0, 4}}, {100}, 1.25);
  EXPECT_EQ(verdict.gradient_norm, 5 * 2.0 / 4) << "twice as many terms as counted, and a loss times 4";
  EXPECT_NEAR(verdict.gradient_scale, 0.5, 1e-6);
  EXPECT_EQ(verdict.finite, 1);
}

TEST_P(StepKernelsTest, NormOfManyPiecesAndChunks) {
  std::vector<std::vector<float>> weights;
  double sum = 0;
  for (int piece = 0; piece < 70; ++piece) {
    weights.push_back(numbers(piece == 5 ? 140001 : 3 + static_cast<size_t>(piece), piece));
    for (const float value : weights.back()) sum += double{value} * value;
  }
  const program::Verdict verdict = norm_of(GetParam(), weights, numbers(9, 1), 0);
  EXPECT_NEAR(verdict.gradient_norm, std::sqrt(sum) / 2, 1e-9 * std::sqrt(sum));
  EXPECT_EQ(verdict.gradient_scale, 1);
}

std::vector<uint64_t> digests_of(device::DeviceKind kind, const std::vector<std::vector<float>>& parameters) {
  Memory memory(kind);
  DigestCall call;
  for (const auto& values : parameters) {
    const auto count = static_cast<int64_t>(values.size());
    call.pieces.push_back(
        {count == 0 ? nullptr : memory.put(values), std::max(count, int64_t{1}), call.chunks});
    call.chunks += (std::max(count, int64_t{1}) + layout::kNormChunk - 1) / layout::kNormChunk;
  }
  call.digests = memory.put(std::vector<uint64_t>(static_cast<size_t>(call.chunks), 7));
  memory.kernels().digest(call, memory.stream());
  return memory.get(call.digests, static_cast<size_t>(call.chunks));
}

TEST_P(StepKernelsTest, DigestsAreSumsOfBitsTimesOddNumbersByChunks) {
  // The bits of 1 and 2 are 0x3f800000 and 0x40000000; element 1 counts 0x9e3779b1 times, and 2 counts
  // 0x3c6ef363 times.
  EXPECT_EQ(digests_of(GetParam(), {{1}, {}, {0, 2}, {0, 0, 1}}),
            (std::vector<uint64_t>{0x3f800000, 0, 0x9e3779b1ull * 0x40000000, 0x3c6ef363ull * 0x3f800000}));
}

TEST_P(StepKernelsTest, AnyChangedBitChangesTheDigestOfItsChunkAlone) {
  std::vector<std::vector<float>> parameters;
  for (int p = 0; p < 70; ++p) parameters.push_back(numbers(p == 5 ? 140001 : 3 + static_cast<size_t>(p), p));
  const auto before = digests_of(GetParam(), parameters);
  ASSERT_EQ(before.size(), 72u);
  for (int bit = 0; bit < 32; ++bit) {
    auto& element = parameters[5][static_cast<size_t>(65536 + 2017 * bit)];
    const float was = element;
    element = std::bit_cast<float>(std::bit_cast<uint32_t>(element) ^ 1u << bit);
    const auto after = digests_of(GetParam(), parameters);
    for (size_t chunk = 0; chunk < before.size(); ++chunk)
      EXPECT_EQ(before[chunk] != after[chunk], chunk == 6) << chunk << " of bit " << bit;
    element = was;
  }
  EXPECT_EQ(digests_of(device::DeviceKind::cpu, parameters), before);
}

TEST_P(StepKernelsTest, WhatIsNotFiniteIsFoundInWeightsAndStatistics) {
  const float bad[] = {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()};
  for (const float value : bad) {
    EXPECT_EQ(norm_of(GetParam(), {numbers(5, 1), {0, value, 0}}, {1}, 0).finite, 0);
    EXPECT_EQ(norm_of(GetParam(), {numbers(5, 1)}, {1, value}, 0).finite, 0);
  }
}

struct Updated {
  std::vector<float> parameters, first, second, third;
  std::vector<uint16_t> copy;  ///< empty without one
  bool operator==(const Updated&) const = default;
};

Updated update_on(device::DeviceKind kind, const optim::OptimizerOptions& optimizer, double finite = 1,
                  float average_gain = 0.125f, DType copy = DType::float32) {
  Memory memory(kind);
  // More pieces than one launch takes, of odd sizes, at multiples of 64 bytes; every ninth is a statistic.
  UpdateCall call{.optimizer = optimizer,
                  .whole_step = true,
                  .predicated = true,
                  .static_count = 16,
                  .statistic_scale = 0.25};
  int64_t end = 0;
  for (int piece = 0; piece < 70; ++piece) {
    const int64_t count = piece == 3 ? 9001 : 1 + piece * 3;
    call.pieces.push_back({.offset = end,
                           .count = count,
                           .rates = {.weight_decay = piece % 2 == 0 ? optimizer.weight_decay : 0,
                                     .learning_rate_factor = piece % 3 == 0 ? 0.25 : 1,
                                     .updates_before = piece % 5 == 0 ? 17u : 0u},
                           .is_statistic = piece % 9 == 8,
                           .momentum = 0.1f});
    end += (count + 15) / 16 * 16;
  }
  const auto size = static_cast<size_t>(end);
  program::Verdict verdict;
  verdict.count = 8;
  verdict.gradient_scale = 0.5;
  verdict.finite = finite;
  StepScalars constants;
  constants.update.learning_rate = 0.01;
  constants.kernels.loss_scale = 2;
  constants.update.beta1_power = 0.9;
  constants.update.beta2_power = 0.999;
  constants.update.updates = 30;
  constants.update.average_gain = average_gain;
  call.parameters = memory.put(numbers(size, 1));
  call.gradients = memory.put(numbers(size, 2));
  auto square = numbers(size, 4);
  for (auto& value : square) value = std::fabs(value);
  call.state[0] = memory.put(numbers(size, 3));
  call.state[1] = memory.put(square);
  call.state[2] = memory.put(numbers(size, 5));
  call.verdict = memory.put(std::vector<program::Verdict>{verdict});
  call.constants = memory.put(std::vector<StepScalars>{constants});
  uint16_t* copied = nullptr;
  if (copy != DType::float32) {
    // What lies between pieces is nobody's.
    copied = memory.put(std::vector<uint16_t>(size, 0x5a5a));
    call.copy = {copied, copy};
  }
  memory.kernels().update(call, memory.stream());
  Updated updated{memory.get(call.parameters, size),
                  memory.get(call.state[0], size),
                  memory.get(call.state[1], size),
                  memory.get(call.state[2], size),
                  {}};
  if (copied == nullptr) return updated;
  updated.copy = memory.get(copied, size);
  auto* const cast = memory.put(std::vector<uint16_t>(size, 0x5a5a));
  for (const UpdateCall::Piece& piece : call.pieces)
    memory.kernels().cast(cast + piece.offset, copy, call.parameters + piece.offset, DType::float32,
                          piece.count, memory.stream());
  EXPECT_EQ(updated.copy == memory.get(cast, size), finite != 0) << name_of(copy);
  return updated;
}

TEST_P(StepKernelsTest, UpdatesLikeTheCpuToTheBit) {
  optim::OptimizerOptions sgd{.kind = optim::OptimizerKind::sgd, .weight_decay = 0.1}, momentum = sgd,
                                                                                       nesterov = sgd;
  momentum.momentum = 0.9;
  nesterov.momentum = 0.9;
  nesterov.nesterov = true;
  const optim::OptimizerOptions adam{.kind = optim::OptimizerKind::adam, .weight_decay = 0.1},
      adamw{.kind = optim::OptimizerKind::adamw, .weight_decay = 0.1};
  for (const auto& optimizer : {sgd, momentum, nesterov, adam, adamw}) {
    const Updated updated = update_on(GetParam(), optimizer);
    EXPECT_NE(updated.parameters, numbers(updated.parameters.size(), 1));
    EXPECT_EQ(updated, update_on(device::DeviceKind::cpu, optimizer));
  }
}

TEST_P(StepKernelsTest, MovesAveragesLikeTheCpuToTheBit) {
  const optim::OptimizerOptions sgd{.average = {.enabled = true}},
      momentum{.momentum = 0.9, .average = {.enabled = true}},
      adamw{.kind = optim::OptimizerKind::adamw, .weight_decay = 0.1, .average = {.enabled = true}};
  const auto average_of = [](const optim::OptimizerOptions& optimizer, const Updated& updated) {
    const std::vector<float>* slots[] = {&updated.first, &updated.second, &updated.third};
    return *slots[optim::state_slots(optimizer) - 1];
  };
  for (const auto& optimizer : {sgd, momentum, adamw})
    for (const float gain : {1.0f, 0.125f}) {
      const Updated updated = update_on(GetParam(), optimizer, 1, gain);
      EXPECT_EQ(updated, update_on(device::DeviceKind::cpu, optimizer, 1, gain));
      // Of the first piece, which is no statistic.
      const float parameter = updated.parameters[0], average = average_of(optimizer, updated)[0];
      EXPECT_EQ(average == parameter, gain == 1);
    }
  // A step that is skipped leaves it where it was.
  EXPECT_EQ(update_on(GetParam(), adamw, 0).third, numbers(update_on(GetParam(), adamw, 0).third.size(), 5));
}

/// To the bits of a cast, for every optimizer and type; parameters and state are the same without a copy.
TEST_P(StepKernelsTest, UpdatesWriteTheCopyThatACastWouldMake) {
  const optim::OptimizerOptions optimizers[] = {
      {.kind = optim::OptimizerKind::sgd, .weight_decay = 0.1},
      {.momentum = 0.9},
      {.momentum = 0.9, .nesterov = true},
      {.kind = optim::OptimizerKind::adam, .weight_decay = 0.1},
      {.kind = optim::OptimizerKind::adamw, .weight_decay = 0.1},
      {.average = {.enabled = true}},
      {.momentum = 0.9, .average = {.enabled = true}},
      {.kind = optim::OptimizerKind::adamw, .average = {.enabled = true}}};
  for (const auto& optimizer : optimizers)
    for (const DType type : {DType::bfloat16, DType::float16}) {
      Updated updated = update_on(GetParam(), optimizer, 1, 0.125f, type);
      EXPECT_EQ(updated, update_on(device::DeviceKind::cpu, optimizer, 1, 0.125f, type));
      EXPECT_EQ(updated.copy[1], 0x5a5a) << "the first piece has one element";
      updated.copy.clear();
      EXPECT_EQ(updated, update_on(GetParam(), optimizer));
    }
}

TEST_P(StepKernelsTest, ASkippedUpdateLeavesTheCopyAlone) {
  const Updated updated =
      update_on(GetParam(), {.kind = optim::OptimizerKind::adamw}, 0, 0.125f, DType::bfloat16);
  EXPECT_EQ(updated.copy, std::vector<uint16_t>(updated.copy.size(), 0x5a5a));
}

TEST_P(StepKernelsTest, NothingIsWrittenWhereTheVerdictIsNotFinite) {
  const Updated updated = update_on(GetParam(), {.kind = optim::OptimizerKind::adamw}, 0);
  EXPECT_EQ(updated.parameters, numbers(updated.parameters.size(), 1));
  EXPECT_EQ(updated.first, numbers(updated.first.size(), 3));
}

INSTANTIATE_TEST_SUITE_P(Cpu, StepKernelsTest, ::testing::Values(device::DeviceKind::cpu));
INSTANTIATE_TEST_SUITE_P(Gpu, StepKernelsTest, ::testing::Values(device::DeviceKind::cuda));

}  // namespace
}  // namespace lockstep::run
