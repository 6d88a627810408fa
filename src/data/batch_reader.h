#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/order.h"

namespace lockstep::data {

/// Positions [first_position, first_position + count) of the stream of samples: a micro-batch.
struct SampleSpan {
  int64_t first_position = 0;
  int64_t count = 0;
  bool operator==(const SampleSpan&) const = default;
};

/// Fills batched tensors from a data set, sample by sample, on the calling thread. Padding positions get
/// zeros, and -1 in the field "label". Const and thread-safe; borrows the data set.
class BatchReader {
 public:
  /// `fields`: the fields to read, in this order; empty: all, in the data set's order. float32 fields are
  /// delivered as `float_type`: float32, bfloat16 or float16; `packed`: but images as packed samples
  /// (Dataset::read_packed). Throws ConfigError for an unknown field.
  BatchReader(const Dataset& dataset, SampleOrder order, const std::vector<std::string>& fields,
              DType float_type = DType::float32, bool packed = false);

  size_t field_count() const { return selected_.size(); }
  int64_t sample_bytes(size_t field) const { return selected_[field].sample_bytes; }
  /// Bytes of scratch for a sample that read() converts. Each reading thread needs its own.
  int64_t scratch_bytes() const { return scratch_bytes_; }
  /// Throws ConfigError unless `tensors` are one per field, of shape [span.count, ...] and of the field's
  /// type.
  void check(SampleSpan span, std::span<const Tensor> tensors) const;
  /// `batches[i]` receives field i of all samples, aligned for its type. `cancelled` is called before each
  /// sample; if it returns true, the rest is not read and the result is false. REQUIRES: `scratch` has
  /// scratch_bytes(), aligned for float.
  template <class Cancelled>
  bool read(SampleSpan span, std::span<std::byte* const> batches, std::span<std::byte> scratch,
            Cancelled&& cancelled) const {
    SampleKey next = span.count > 0 ? order_.key(span.first_position) : SampleKey(SampleOrder::kPadding);
    for (int64_t i = 0; i < span.count; ++i) {
      if (cancelled()) return false;
      const SampleKey key = next;
      if (i + 1 < span.count) {
        next = order_.key(span.first_position + i + 1);
        if (next.sample != SampleOrder::kPadding) dataset_->expect(next);
      }
      read_one(key, i, batches, scratch);
    }
    return true;
  }
  void read(SampleSpan span, std::span<const Tensor> tensors, std::span<std::byte> scratch) const;

 private:
  struct Selected {
    size_t index;  // among the data set's fields
    int64_t count, sample_bytes;
    DType dtype;  // as delivered
    bool is_label;
    bool is_packed;
    int64_t scratch_offset;  // -1: nothing is converted
  };
  void read_one(const SampleKey& key, int64_t row, std::span<std::byte* const> batches,
                std::span<std::byte> scratch) const;

  const Dataset* dataset_;
  SampleOrder order_;
  std::vector<Selected> selected_;
  std::optional<PackedImages> packed_;  // if their field is selected
  Shape packed_shape_;                  // of such a sample
  int64_t scratch_bytes_ = 0;
};

/// Evaluation's view of a data set: file order, each sample once, positions after the last one padded.
class EvaluationReader {
 public:
  explicit EvaluationReader(const Dataset& dataset, const std::vector<std::string>& fields = {})
      : reader_(dataset, SampleOrder::once(dataset.size()), fields) {}
  void read(SampleSpan span, std::span<const Tensor> tensors) const {
    reader_.check(span, tensors);
    reader_.read(span, tensors, {});
  }

 private:
  BatchReader reader_;
};

}  // namespace lockstep::data
