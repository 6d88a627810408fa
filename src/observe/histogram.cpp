#include "observe/histogram.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/index.h"
#include "base/text.h"
#include "lockstep/error.h"
#include "observe/machine/text_numbers.h"

namespace lockstep::observe {
namespace {

// A bucket is an exponent and the first two bits behind the point. Smaller values are in the bucket around
// zero, larger ones in the last.
constexpr int kQuarterBits = 2, kMantissaBits = 23, kBias = 127;
constexpr int kLeastExponent = -40, kGreatestExponent = 40;
constexpr int kBuckets = (kGreatestExponent - kLeastExponent) << kQuarterBits;

/// Of the absolute value, from 1; 0 around zero.
int bucket_of(uint32_t magnitude) {
  const int quarter = static_cast<int>(magnitude >> (kMantissaBits - kQuarterBits));
  return std::clamp(quarter - ((kBias + kLeastExponent) << kQuarterBits) + 1, 0, kBuckets);
}

/// The lower end of the absolute values of a bucket that is not 0.
double border(int bucket) {
  const int quarters = bucket - 1;
  return std::ldexp(1 + (quarters & 3) / 4.0, kLeastExponent + (quarters >> kQuarterBits));
}

/// The least value of a bucket of either sign.
double left_of(int bucket) {
  if (bucket > 0) return border(bucket);
  return bucket == 0 ? -border(1) : -border(1 - bucket);
}

}  // namespace

void Histogram::add(std::span<const float> values) {
  std::array<int64_t, 2 * kBuckets + 1> counts{};
  for (const float value : values) {
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (!std::isfinite(value)) {
      ++nonfinite_;
      continue;
    }
    least_ = std::min(least_, value);
    greatest_ = std::max(greatest_, value);
    const int bucket = bucket_of(magnitude);
    ++nth(counts, kBuckets + ((bits >> 31) != 0 ? -bucket : bucket));
  }
  count_ += static_cast<int64_t>(values.size());
  for (int index = 0; index <= 2 * kBuckets; ++index)
    if (const int64_t count = nth(counts, index); count > 0) counts_[index - kBuckets] += count;
}

void Histogram::add(const Histogram& other) {
  count_ += other.count_;
  nonfinite_ += other.nonfinite_;
  least_ = std::min(least_, other.least_);
  greatest_ = std::max(greatest_, other.greatest_);
  for (const auto& [bucket, count] : other.counts_) counts_[bucket] += count;
}

std::vector<Histogram::Bucket> Histogram::buckets(double scale) const {
  std::vector<Bucket> buckets;
  for (const auto& [bucket, count] : counts_) {
    const double left = left_of(bucket) * scale, right = left_of(bucket + 1) * scale;
    // What lies between, and has nothing, is one bucket.
    if (!buckets.empty() && buckets.back().right < left) buckets.push_back({buckets.back().right, left, 0});
    buckets.push_back({left, right, static_cast<double>(count)});
  }
  if (buckets.empty()) return buckets;
  buckets.front().left = least_ * scale;
  buckets.back().right = greatest_ * scale;
  return buckets;
}

std::string Histogram::text() const {
  std::string text = fmt::format("{} {} {} {}", count_, nonfinite_, std::bit_cast<uint32_t>(least_),
                                 std::bit_cast<uint32_t>(greatest_));
  for (const auto& [bucket, count] : counts_) text += fmt::format(" {} {}", bucket, count);
  return text;
}

Histogram Histogram::parse(std::string_view text) {
  const auto words = words_of(text);
  std::vector<int64_t> numbers;
  for (const auto word : words)
    if (const auto number = number_in(word)) numbers.push_back(static_cast<int64_t>(*number));
  if (numbers.size() != words.size() || numbers.size() < 4 || numbers.size() % 2 != 0)
    throw DataError(fmt::format("expected a histogram, found '{}'", text.substr(0, 60)));
  Histogram histogram;
  histogram.count_ = numbers[0];
  histogram.nonfinite_ = numbers[1];
  histogram.least_ = std::bit_cast<float>(static_cast<uint32_t>(numbers[2]));
  histogram.greatest_ = std::bit_cast<float>(static_cast<uint32_t>(numbers[3]));
  for (size_t i = 4; i < numbers.size(); i += 2)
    histogram.counts_[static_cast<int>(std::clamp<int64_t>(numbers[i], -kBuckets, kBuckets))] +=
        numbers[i + 1];
  return histogram;
}

}  // namespace lockstep::observe
