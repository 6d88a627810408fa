// Ops that only move elements: concatenate, slice, transpose.

#include "ops/array_copy.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "ops/op_cases.h"

namespace lockstep::testing {
namespace {

/// The element of `array` at these indices, the batch's first.
double& element(Array& array, const std::vector<int64_t>& at) {
  int64_t offset = 0;
  for (int d = 0; d < array.shape.rank(); ++d) offset = offset * array.shape[d] + at[static_cast<size_t>(d)];
  return array.values[static_cast<size_t>(offset)];
}

/// Calls work(indices) for every element of an array of this shape.
template <class Work>
void for_each(const Shape& shape, const Work& work) {
  for (int64_t number = 0; number < shape.count(); ++number) {
    std::vector<int64_t> at(static_cast<size_t>(shape.rank()));
    int64_t left = number;
    for (int d = shape.rank(); d-- > 0; left /= shape[d]) at[static_cast<size_t>(d)] = left % shape[d];
    work(at);
  }
}

Array empty_output(const Op& op, const std::vector<TensorSpec>& inputs, int64_t batch) {
  const Shape shape = ops::infer(op, inputs).outputs[0].shape.batched(batch);
  return {shape, std::vector<double>(static_cast<size_t>(shape.count()))};
}

size_t dimension(int64_t axis, const Shape& of_sample) {
  return static_cast<size_t>((axis < 0 ? axis + of_sample.rank() : axis) + 1);
}

OpCase make_array_copy(std::string name, const Concatenate& op, std::vector<TensorSpec> specs,
                       int threads = 1) {
  OpCase c{.name = std::move(name), .op = op, .inputs = specs, .batch = 3};
  c.options.intra_op_threads = threads;
  c.reference = [=](std::vector<Array> inputs, const std::vector<Array>&) {
    Array y = empty_output(op, specs, 3);
    const size_t d = dimension(op.axis, specs[0].shape);
    int64_t begin = 0;
    for (Array& input : inputs) {
      for_each(input.shape, [&](std::vector<int64_t> at) {
        const double value = element(input, at);
        at[d] += begin;
        element(y, at) = value;
      });
      begin += input.shape[static_cast<int>(d)];
    }
    return std::vector<Array>{y};
  };
  return c;
}

OpCase make_array_copy(std::string name, const Slice& op, Shape shape) {
  OpCase c{.name = std::move(name), .op = op, .inputs = {{shape}}, .batch = 3};
  c.reference = [=](std::vector<Array> inputs, const std::vector<Array>&) {
    Array y = empty_output(op, {{shape}}, 3);
    for_each(y.shape, [&](std::vector<int64_t> at) {
      double& to = element(y, at);
      at[dimension(op.axis, shape)] += op.begin;
      to = element(inputs[0], at);
    });
    return std::vector<Array>{y};
  };
  return c;
}

OpCase make_array_copy(std::string name, const Transpose& op, std::vector<size_t> order, Shape shape) {
  OpCase c{.name = std::move(name), .op = op, .inputs = {{shape}}, .batch = 3};
  c.options.intra_op_threads = 2;
  c.reference = [=](std::vector<Array> inputs, const std::vector<Array>&) {
    Array y = empty_output(op, {{shape}}, 3);
    for_each(y.shape, [&](const std::vector<int64_t>& at) {
      std::vector<int64_t> from = at;
      for (size_t d = 0; d < order.size(); ++d) from[order[d] + 1] = at[d + 1];
      element(y, at) = element(inputs[0], from);
    });
    return std::vector<Array>{y};
  };
  return c;
}

}  // namespace

template <>
std::vector<OpCase> cases_of<Concatenate>() {
  return {make_array_copy("channels", Concatenate{}, {{{4, 3}}, {{4, 5}}}),
          make_array_copy("rows", Concatenate{.axis = 0}, {{{1, 7}}, {{3, 7}}, {{2, 7}}}),
          make_array_copy("middle", Concatenate{.axis = 1}, {{{2, 3, 4}}, {{2, 1, 4}}}, 2),
          make_array_copy("numbers", Concatenate{.axis = 0}, {{{1}}, {{1}}}),
          make_array_copy("many", Concatenate{.axis = -2}, {{{37, 131}}, {{129, 131}}}, 2)};
}

template <>
std::vector<OpCase> cases_of<Slice>() {
  return {make_array_copy("first", Slice{.end = 1}, {5, 3}),
          make_array_copy("channels", Slice{.axis = -1, .begin = 2, .end = -1}, {4, 7}),
          make_array_copy("middle", Slice{.axis = 1, .begin = 1, .end = 3}, {2, 4, 5}),
          make_array_copy("all", Slice{}, {3, 2}), make_array_copy("rest", Slice{.begin = 17}, {131, 37})};
}

template <>
std::vector<OpCase> cases_of<Transpose>() {
  return {make_array_copy("matrix", Transpose{"1,0"}, {1, 0}, {5, 3}),
          make_array_copy("last_to_first", Transpose{"2, 0, 1"}, {2, 0, 1}, {2, 3, 4}),
          make_array_copy("rows_stay", Transpose{"0,2,1"}, {0, 2, 1}, {3, 4, 2}),
          make_array_copy("same", Transpose{"0,1"}, {0, 1}, {3, 4}),
          make_array_copy("wide", Transpose{"1,0"}, {1, 0}, {131, 67})};
}

namespace {

TEST(ArrayCopy, TakesAsFewDimensionsAsThereAre) {
  const std::vector<TensorSpec> two{{{4, 6}}, {{4, 2}}}, one{{{4, 6}}};
  EXPECT_EQ(ops::copies_of(Concatenate{}, two, 3).of_inputs[0].joined().rank, 2);
  EXPECT_EQ(ops::copies_of(Slice{}, one, 3).of_inputs[0].joined().rank, 1);
  EXPECT_EQ(ops::copies_of(Slice{.end = 2}, one, 3).of_inputs[0].joined().rank, 2);
  EXPECT_EQ(ops::copies_of(Transpose{"1,0"}, one, 1).of_inputs[0].joined().rank, 2);
}

TEST(ArrayCopy, AgreesWithPyTorch) {
  expect_matches_golden(Concatenate{.axis = -1}, read_golden("concatenate", "channels"));
  expect_matches_golden(Concatenate{.axis = 0}, read_golden("concatenate", "rows"));
  expect_matches_golden(Slice{.axis = 0, .begin = 1, .end = 3}, read_golden("slice", "rows"));
  expect_matches_golden(Slice{.axis = -1, .begin = 1, .end = -1},
                        read_golden("slice", "channels_from_the_end"));
  expect_matches_golden(Transpose{.order = "1,0"}, read_golden("transpose", "two"));
  expect_matches_golden(Transpose{.order = "2,0,1"}, read_golden("transpose", "three"));
}

TEST(ArrayCopy, RefusesWhatDoesNotFit) {
  const auto refuses = [](const Op& op, const std::vector<TensorSpec>& inputs) {
    EXPECT_THROW(ops::infer(op, inputs), ConfigError) << name_of(op);
  };
  refuses(Concatenate{}, {{{3, 4}}});
  refuses(Concatenate{}, {{{3, 4}}, {{2, 4}}});
  refuses(Concatenate{}, {{{3, 4}}, {{3, 4, 1}}});
  refuses(Concatenate{.axis = 2}, {{{3, 4}}, {{3, 4}}});
  refuses(Concatenate{}, {{{3, 4}}, {{3, 4}, DType::int32}});
  refuses(Slice{.axis = -3}, {{{3, 4}}});
  refuses(Slice{.begin = 3}, {{{3, 4}}});
  refuses(Slice{.end = 4}, {{{3, 4}}});
  refuses(Slice{.end = -3}, {{{3, 4}}});
  for (const char* order : {"", "0", "0,0", "0,2", "1,0,2", "1,x", "-1,0"})
    refuses(Transpose{order}, {{{3, 4}}});
}

TEST(ArrayCopy, WritesTextUnlessPositionsMove) {
  const auto positions = [](const Op& op, const std::vector<TensorSpec>& inputs) {
    return ops::infer(op, inputs).positions;
  };
  EXPECT_EQ(positions(Concatenate{}, {{{3, 4}}, {{3, 4}}}), ops::PositionUse::own);
  EXPECT_EQ(positions(Concatenate{.axis = 0}, {{{3, 4}}, {{3, 4}}}), ops::PositionUse::any);
  EXPECT_EQ(positions(Slice{.axis = 1, .end = 2}, {{{3, 4}}}), ops::PositionUse::own);
  EXPECT_EQ(positions(Transpose{"1,0"}, {{{3, 4}}}), ops::PositionUse::any);
}

}  // namespace
}  // namespace lockstep::testing
