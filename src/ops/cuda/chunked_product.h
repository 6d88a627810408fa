#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "device/device.h"
#include "ops/cuda/product.h"
#include "ops/op.h"

namespace lockstep::ops {

// Convolutions make columns of a chunk of the batch at a time.

inline int64_t whole_lines_of(int64_t bytes) { return (bytes + 255) / 256 * 256; }

/// Of columns that are in memory at once, as far as one sample allows.
inline int64_t most_column_bytes(const KernelOptions& options) {
  return options.column_bytes > 0 ? options.column_bytes : Product::factor_bytes();
}

/// One product for every chunk of a batch; the last may be smaller and has a product of its own. `AProduct`
/// is Product or FoldedProduct.
template <class AProduct>
class ChunkedProduct {
 public:
  /// `make`: of a number of samples.
  template <class Make>
  ChunkedProduct(int64_t batch, int64_t chunk, const Make& make)
      : batch_(batch), chunk_(chunk), whole_(make(chunk)) {
    if (batch % chunk != 0) rest_.emplace(make(batch % chunk));
  }

  int64_t workspace_bytes() const {
    return std::max(whole_.workspace_bytes(), rest_ ? rest_->workspace_bytes() : 0);
  }

  void prepare(device::Device& device) {
    whole_.prepare(device);
    if (rest_) rest_->prepare(device);
  }

  /// work(product, first sample, samples) for every chunk.
  template <class Work>
  void for_each(const Work& work) {
    for (int64_t first = 0; first < batch_; first += chunk_) {
      const int64_t samples = std::min(chunk_, batch_ - first);
      work(samples == chunk_ ? whole_ : *rest_, first, samples);
    }
  }

 private:
  int64_t batch_, chunk_;
  AProduct whole_;
  std::optional<AProduct> rest_;
};

}  // namespace lockstep::ops
