#include "observe/histogram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "lockstep/error.h"

namespace lockstep::observe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Bucket = Histogram::Bucket;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Histogram, BucketsAreQuartersOfPowersOfTwo) {
  Histogram histogram;
  histogram.add(std::vector<float>{1.0f, 1.2f, 1.25f, 3.0f, -1.0f});
  EXPECT_THAT(histogram.buckets(), ElementsAre(Bucket{-1, -1, 1}, Bucket{-1, 1, 0}, Bucket{1, 1.25, 2},
                                               Bucket{1.25, 1.5, 1}, Bucket{1.5, 3, 0}, Bucket{3, 3, 1}));
  EXPECT_EQ(histogram.buckets(2).at(2), (Bucket{2, 2.5, 2}));
}

TEST(Histogram, EveryValueIsWithinItsBucket) {
  for (const float value : {1e-30f, 1e-12f, 7e-7f, 0.3f, 1.0f, 1e9f, 1e30f})
    for (const float signed_value : {value, -value}) {
      Histogram histogram;
      histogram.add(std::vector<float>{signed_value, -2 * value, 2 * value});
      double count = 0;
      for (const auto& bucket : histogram.buckets()) {
        EXPECT_LE(bucket.left, bucket.right);
        if (bucket.left <= signed_value && signed_value <= bucket.right) count += bucket.count;
      }
      EXPECT_GE(count, 1) << signed_value;
    }
}

TEST(Histogram, PartsAddUpToTheWhole) {
  std::vector<float> values(1000);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = std::sin(static_cast<float>(i)) * std::exp2(static_cast<float>(i % 30) - 20);
  Histogram whole, first, second;
  whole.add(values);
  first.add(std::span(values).first(333));
  second.add(std::span(values).subspan(333));
  first.add(second);
  EXPECT_EQ(first.buckets(), whole.buckets());
  EXPECT_EQ(first.text(), whole.text());
  const auto buckets = whole.buckets();
  EXPECT_EQ(std::accumulate(buckets.begin(), buckets.end(), 0.0,
                            [](double sum, const Bucket& b) { return sum + b.count; }),
            1000);
}

TEST(Histogram, WhatIsNotFiniteIsCountedApart) {
  Histogram histogram;
  histogram.add(std::vector<float>{kInfinity, -kInfinity, std::nanf("")});
  EXPECT_EQ(histogram.count(), 3);
  EXPECT_EQ(histogram.nonfinite(), 3);
  EXPECT_THAT(histogram.buckets(), IsEmpty());
  histogram.add(std::vector<float>{0.0f});
  EXPECT_THAT(histogram.buckets(), ElementsAre(Bucket{0, 0, 1}));
}

TEST(Histogram, ReadsBackFromItsText) {
  Histogram histogram;
  histogram.add(std::vector<float>{0.1f, -3e-5f, 0.0f, kInfinity});
  const Histogram read = Histogram::parse(histogram.text());
  EXPECT_EQ(read.buckets(), histogram.buckets());
  EXPECT_EQ(read.count(), 4);
  EXPECT_EQ(read.nonfinite(), 1);
  EXPECT_TRUE(Histogram::parse(Histogram().text()).buckets().empty());
  for (const char* text : {"", "1 2 3", "1 2 3 4 5", "1 2 3 x"})
    EXPECT_THROW(Histogram::parse(text), DataError) << text;
}

}  // namespace
}  // namespace lockstep::observe
