#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::observe {

/// How values are distributed, in constant memory. Four buckets for each power of two, the same ones in every
/// histogram, so that those of parts can be added. Values that are not finite are counted apart.
class Histogram {
 public:
  void add(std::span<const float> values);
  void add(const Histogram& other);

  int64_t count() const { return count_; }  ///< those that are not finite included
  int64_t nonfinite() const { return nonfinite_; }

  struct Bucket {
    double left = 0, right = 0;
    double count = 0;
    bool operator==(const Bucket&) const = default;
  };
  /// Ascending and without gaps, from the least to the greatest value, all times `scale`. Empty if no value
  /// is finite. REQUIRES: scale > 0.
  std::vector<Bucket> buckets(double scale = 1) const;

  /// Numbers with blanks between them, and back. parse throws DataError.
  std::string text() const;
  static Histogram parse(std::string_view text);

 private:
  int64_t count_ = 0, nonfinite_ = 0;
  float least_ = std::numeric_limits<float>::infinity(), greatest_ = -std::numeric_limits<float>::infinity();
  std::map<int, int64_t> counts_;  // by bucket: negative numbers for negative values, 0 around zero
};

/// A name as TensorBoard shows it, and its buckets.
using NamedHistogram = std::pair<std::string, std::vector<Histogram::Bucket>>;

}  // namespace lockstep::observe
