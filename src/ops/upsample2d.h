#pragma once

#include <cmath>
#include <cstdint>

#include "base/host_device.h"
#include "lockstep/ops.h"
#include "lockstep/tensor.h"

namespace lockstep::ops {

/// From which places of the input a place of the output is interpolated: (1 - share) of `low`, and `share` of
/// `high`, which is `low` or the place behind it.
struct AxisSource {
  int low, high;
  float share;
};

/// One side of an image. The formulas of both directions, for CPUs and GPUs: those of PyTorch on CPUs, in
/// float32 as there, so that rounding chooses the same pixels. (PyTorch's kernels for GPUs do without the two
/// special cases.)
struct UpsampleAxis {
  int in = 0, out = 0;
  float ratio = 0;  ///< places of the input for one of the output
  UpsampleKind kind = UpsampleKind::nearest;
  bool align_corners = false;

  LOCKSTEP_HOST_DEVICE AxisSource source(int place) const {
    if (in == out) return {place, place, 0.0f};
    const auto at = static_cast<float>(place);
    if (kind == UpsampleKind::nearest) {
      if (out == 2 * in) return {place / 2, place / 2, 0.0f};
      const int low = static_cast<int>(std::floor(at * ratio));
      const int bounded = low < in ? low : in - 1;
      return {bounded, bounded, 0.0f};
    }
    const float exact = align_corners ? ratio * at : ratio * (at + 0.5f) - 0.5f;
    const float within = exact > 0.0f ? exact : 0.0f;
    const int floor = static_cast<int>(within), low = floor < in ? floor : in - 1;
    const float share = within - static_cast<float>(low);
    return {low, low + 1 < in ? low + 1 : low, share < 1.0f ? share : 1.0f};
  }

  /// What place `place` of the output takes of place `from` of the input.
  LOCKSTEP_HOST_DEVICE float weight(int place, int from) const {
    const AxisSource s = source(place);
    return (s.low == from ? 1.0f - s.share : 0.0f) + (s.high == from ? s.share : 0.0f);
  }

  /// The first place of the output whose `low` is at least `from`, or `out`. Sources ascend with places.
  LOCKSTEP_HOST_DEVICE int first_from(int from) const {
    int begin = 0, end = out;
    while (begin < end) {
      const int middle = begin + (end - begin) / 2;
      if (source(middle).low >= from)
        end = middle;
      else
        begin = middle + 1;
    }
    return begin;
  }
  /// Places first_reader(from) ... end_of_readers(from) - 1 of the output are those that may read `from`.
  LOCKSTEP_HOST_DEVICE int first_reader(int from) const {
    return first_from(kind == UpsampleKind::nearest ? from : from - 1);
  }
  LOCKSTEP_HOST_DEVICE int end_of_readers(int from) const { return first_from(from + 1); }
};

/// Sizes of one sample.
struct UpsampleGeometry {
  UpsampleAxis rows, columns;
  int64_t channels;

  /// REQUIRES: op and image passed the shape rule.
  UpsampleGeometry(const Upsample2d& op, const Shape& image);
  int64_t input_size() const { return int64_t{rows.in} * columns.in * channels; }
  int64_t output_size() const { return int64_t{rows.out} * columns.out * channels; }
};

}  // namespace lockstep::ops
