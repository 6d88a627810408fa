#include "ops/upsample2d.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "ops/op_cases.h"
#include "ops/op_expect.h"

namespace lockstep::testing {
namespace {

constexpr auto kNearest = UpsampleKind::nearest, kBilinear = UpsampleKind::bilinear;

/// The value at (row, column), between pixels, of one channel.
double interpolated(const Upsample2d& op, double row, double column,
                    const std::function<double(int64_t, int64_t)>& at, int64_t height, int64_t width) {
  if (op.kind == kNearest)
    return at(std::min(static_cast<int64_t>(row), height - 1),
              std::min(static_cast<int64_t>(column), width - 1));
  row = std::clamp(row, 0.0, static_cast<double>(height - 1));
  column = std::clamp(column, 0.0, static_cast<double>(width - 1));
  const auto top = static_cast<int64_t>(row), left = static_cast<int64_t>(column);
  const int64_t bottom = std::min(top + 1, height - 1), right = std::min(left + 1, width - 1);
  const double down = row - static_cast<double>(top), over = column - static_cast<double>(left);
  return (1 - down) * ((1 - over) * at(top, left) + over * at(top, right)) +
         down * ((1 - over) * at(bottom, left) + over * at(bottom, right));
}

/// Where place `to` lies in the input.
double source_of(const Upsample2d& op, int64_t to, int64_t in, int64_t out) {
  const double step = op.scale == 0 ? static_cast<double>(in) / static_cast<double>(out) : 1 / op.scale;
  if (op.kind == kNearest) return static_cast<double>(to) * step + 1e-4;  // whole numbers stay whole
  if (!op.align_corners) return (static_cast<double>(to) + 0.5) * step - 0.5;
  return out == 1 ? 0 : static_cast<double>(to * (in - 1)) / static_cast<double>(out - 1);
}

std::vector<Array> upsample2d_reference(const Upsample2d& op, const Array& x) {
  const int64_t height = x.shape[1], width = x.shape[2], channels = x.shape[3];
  const auto size = [&](int64_t n, int64_t stated) {
    return op.scale == 0 ? stated : static_cast<int64_t>(static_cast<double>(n) * op.scale);
  };
  Array y{{x.shape[0], size(height, op.height), size(width, op.width), channels}, {}};
  for (int64_t n = 0; n < x.shape[0]; ++n)
    for (int64_t row = 0; row < y.shape[1]; ++row)
      for (int64_t column = 0; column < y.shape[2]; ++column)
        for (int64_t c = 0; c < channels; ++c)
          y.values.push_back(interpolated(
              op, source_of(op, row, height, y.shape[1]), source_of(op, column, width, y.shape[2]),
              [&](int64_t h, int64_t w) {
                return x.values[static_cast<size_t>(((n * height + h) * width + w) * channels + c)];
              },
              height, width));
  return {y};
}

OpCase make_upsample2d(std::string name, Upsample2d op, Shape input, int64_t batch = 2) {
  return {.name = std::move(name),
          .op = op,
          .inputs = {{std::move(input)}},
          .batch = batch,
          .reference = [op](const auto& inputs, const auto&) { return upsample2d_reference(op, inputs[0]); }};
}

}  // namespace

template <>
std::vector<OpCase> cases_of<Upsample2d>() {
  std::vector<OpCase> cases;
  for (const UpsampleKind kind : {kNearest, kBilinear}) {
    const std::string name = kind == kNearest ? "nearest_" : "bilinear_";
    cases.push_back(make_upsample2d(name + "one_pixel", {.kind = kind, .scale = 4}, {1, 1, 1}, 1));
    cases.push_back(make_upsample2d(name + "same_size", {.kind = kind, .scale = 1}, {4, 6, 3}));
    cases.push_back(make_upsample2d(name + "twice", {.kind = kind, .scale = 2}, {5, 7, 19}));
    cases.push_back(make_upsample2d(name + "twice_in_packs", {.kind = kind, .scale = 2}, {5, 3, 16}));
    cases.push_back(make_upsample2d(name + "by_half_more", {.kind = kind, .scale = 1.5}, {6, 5, 4}, 3));
    cases.push_back(make_upsample2d(name + "smaller", {.kind = kind, .scale = 0.4}, {11, 7, 5}));
    cases.push_back(
        make_upsample2d(name + "wider_and_lower", {.kind = kind, .height = 3, .width = 29}, {7, 6, 3}));
    cases.push_back(
        make_upsample2d(name + "to_one_pixel", {.kind = kind, .height = 1, .width = 1}, {5, 5, 7}, 1));
    cases.push_back(make_upsample2d(name + "two_threads", {.kind = kind, .scale = 3}, {4, 4, 3}, 5));
    cases.back().options.intra_op_threads = 2;
    cases.push_back(
        make_upsample2d(name + "more_threads_than_samples", {.kind = kind, .scale = 2}, {3, 4, 9}, 2));
    cases.back().options.intra_op_threads = 4;
  }
  const auto aligned = [](int64_t height, int64_t width) {
    return Upsample2d{.kind = kBilinear, .height = height, .width = width, .align_corners = true};
  };
  cases.push_back(make_upsample2d("aligned", aligned(9, 13), {4, 5, 6}));
  cases.push_back(make_upsample2d("aligned_to_one_row", aligned(1, 11), {4, 5, 6}));
  cases.push_back(make_upsample2d("aligned_from_one_column", aligned(7, 5), {3, 1, 2}));
  return cases;
}

namespace {

TEST(Upsample2d, CopiesPixelsAndAddsTheirGradients) {
  OpHarness harness(Upsample2d{.scale = 2}, {{Shape{1, 2, 2}}}, {.batch = 1});
  fill(harness.inputs[0], {1, 10, 2, 20});
  harness.forward();
  EXPECT_EQ(harness.outputs[0].shape, (Shape{1, 2, 4, 2}));
  EXPECT_EQ(values_of(harness.outputs[0]),
            (std::vector<double>{1, 10, 1, 10, 2, 20, 2, 20, 1, 10, 1, 10, 2, 20, 2, 20}));
  fill(harness.output_gradients[0], {1, 2, 3, 4, 5, 6, 7, 8, 10, 20, 30, 40, 50, 60, 70, 80});
  harness.backward();
  EXPECT_EQ(values_of(harness.input_gradients[0]), (std::vector<double>{44, 66, 132, 154}));
}

TEST(Upsample2d, MixesNeighborsByTheirDistance) {
  OpHarness harness(Upsample2d{.kind = kBilinear, .scale = 2}, {{Shape{1, 3, 1}}}, {.batch = 1});
  fill(harness.inputs[0], {0, 8, 4});
  harness.forward();
  EXPECT_EQ(values_of(harness.outputs[0]), (std::vector<double>{0, 2, 6, 7, 5, 4, 0, 2, 6, 7, 5, 4}));
  fill(harness.output_gradients[0], {4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0});
  harness.backward();
  EXPECT_EQ(values_of(harness.input_gradients[0]), (std::vector<double>{4 + 3, 1, 0}));
}

TEST(Upsample2d, AlignsCorners) {
  const Upsample2d op{.kind = kBilinear, .height = 1, .width = 5, .align_corners = true};
  OpHarness harness(op, {{Shape{1, 3, 1}}}, {.batch = 1});
  fill(harness.inputs[0], {0, 8, 4});
  harness.forward();
  EXPECT_EQ(values_of(harness.outputs[0]), (std::vector<double>{0, 4, 8, 6, 4}));
}

/// Every place of the output is among the readers of those that it reads, and of these alone: otherwise
/// gradients would be lost, or go round twice.
TEST(Upsample2d, ReadersAreThoseThatRead) {
  for (const UpsampleKind kind : {kNearest, kBilinear})
    for (const bool aligned : {false, true})
      for (int in = 1; in <= 17; ++in)
        for (int out = 1; out <= 40; ++out) {
          if (aligned && kind == kNearest) continue;
          const ops::UpsampleGeometry geometry(
              Upsample2d{.kind = kind, .height = out, .width = 1, .align_corners = aligned}, Shape{in, 1, 1});
          const ops::UpsampleAxis& axis = geometry.rows;
          for (int place = 0; place < out; ++place) {
            const auto source = axis.source(place);
            ASSERT_TRUE(0 <= source.low && source.low <= source.high && source.high < in);
            ASSERT_TRUE(source.share >= 0 && source.share <= 1);
            double sum = 0;
            for (int from = 0; from < in; ++from) {
              const float weight = axis.weight(place, from);
              const bool reads = axis.first_reader(from) <= place && place < axis.end_of_readers(from);
              ASSERT_TRUE(reads || weight == 0) << in << " to " << out << ": " << place << " of " << from;
              sum += weight;
            }
            ASSERT_NEAR(sum, 1, 1e-6);
          }
        }
}

TEST(Upsample2d, AgreesWithPyTorch) {
  const auto agrees = [](const Upsample2d& op, const std::string& name) {
    SCOPED_TRACE(name);
    expect_matches_golden(op, read_golden("upsample2d", name));
  };
  agrees({.scale = 2}, "nearest_twice");
  agrees({.scale = 1.5}, "nearest_by_half_more");
  agrees({.height = 9, .width = 4}, "nearest_to_size");
  agrees({.scale = 1.1}, "nearest_keeps_size");
  agrees({.scale = 2.1}, "nearest_twice_by_2_1");
  agrees({.scale = 0.7}, "nearest_by_0_7");
  agrees({.kind = kBilinear, .scale = 2}, "bilinear_twice");
  agrees({.kind = kBilinear, .scale = 1.1}, "bilinear_keeps_size");
  agrees({.kind = kBilinear, .scale = 1.7}, "bilinear_by_1_7");
  agrees({.kind = kBilinear, .height = 3, .width = 16}, "bilinear_to_size");
  agrees({.kind = kBilinear, .height = 9, .width = 4, .align_corners = true}, "bilinear_aligned");
  agrees({.kind = kBilinear, .scale = 3, .align_corners = true}, "bilinear_aligned_by_3");
}

/// Scales that are a little smaller in float32 give as many pixels as in double precision.
TEST(Upsample2d, CountsPixelsInDoublePrecision) {
  const auto size = [](int64_t pixels, double scale) {
    return ops::infer(Upsample2d{.scale = scale}, std::vector<TensorSpec>{{Shape{pixels, 1, 1}}})
        .outputs[0]
        .shape[0];
  };
  EXPECT_EQ(size(10, 1.3), 13);
  EXPECT_EQ(size(10, 2.3), 23);
  EXPECT_EQ(size(5, 1.4), 7);
}

/// A neighbor that is infinite leaves them as they are.
TEST(Upsample2d, CopiesImagesThatKeepTheirSize) {
  for (const UpsampleKind kind : {kNearest, kBilinear}) {
    OpHarness harness(Upsample2d{.kind = kind, .scale = 1}, {{Shape{1, 3, 1}}}, {.batch = 1});
    fill(harness.inputs[0], {1, std::numeric_limits<float>::infinity(), 2});
    harness.forward();
    const auto values = values_of(harness.outputs[0]);
    EXPECT_EQ(values[0], 1);
    EXPECT_EQ(values[2], 2);
  }
}

TEST(Upsample2d, RefusesSizesThatAreNone) {
  const auto refuses = [](const Upsample2d& op, Shape shape, const std::string& part) {
    expect_config_error([&] { ops::infer(op, std::vector<TensorSpec>{{shape}}); }, part);
  };
  refuses({}, {4, 4, 1}, "scale");
  refuses({.scale = 2, .height = 8, .width = 8}, {4, 4, 1}, "either");
  refuses({.height = 8}, {4, 4, 1}, "width 0");
  refuses({.scale = -2}, {4, 4, 1}, "-2");
  refuses({.scale = std::nan("")}, {4, 4, 1}, "scale");
  refuses({.scale = 0.2}, {4, 9, 1}, "[4, 9, 1]");
  refuses({.scale = 2, .align_corners = true}, {4, 4, 1}, "align_corners");
  refuses({.scale = 1e8}, {4, 4, 1}, "16777216");
  refuses({.scale = 2}, {4, 4}, "[4, 4]");
}

}  // namespace
}  // namespace lockstep::testing
