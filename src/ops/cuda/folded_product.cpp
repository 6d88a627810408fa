#include "ops/cuda/folded_product.h"

#include <algorithm>

#include "base/ensure.h"
#include "ops/cuda/replica_sum.h"
#include "ops/replica_fold.h"

namespace lockstep::ops {
namespace {

constexpr int64_t kMostTermBytes = 64 << 20;  // products of more fill a GPU by themselves

int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

ProductSpec of_items(ProductSpec spec, int items) {
  spec.items = items;
  return spec;
}

}  // namespace

FoldedProduct::FoldedProduct(const ProductSpec& spec, int replicas)
    : replicas_(replicas),
      bytes_(spec.c_count() * size_of(spec.result)),
      together_(replicas_together()),
      whole_(of_items(spec, together_)) {
  if (replicas % together_ != 0) rest_.emplace(of_items(spec, replicas % together_));
}

/// Products of a call write side by side, so each begins where the first may.
int FoldedProduct::replicas_together() const {
  int count = 1;
  if (bytes_ % kTensorAlignment != 0) return count;
  while (count < replicas_ && 2 * count * bytes_ <= kMostTermBytes && 2 * count <= kMostReplicaTerms)
    count *= 2;
  return std::min(count, replicas_);
}

int64_t FoldedProduct::terms_bytes() const { return together_ == 1 ? 0 : whole_lines(together_ * bytes_); }

int64_t FoldedProduct::workspace_bytes() const {
  return whole_lines(Product::workspace_bytes()) + terms_bytes() +
         (fold_slots(groups()) - 1) * whole_lines(bytes_);
}

void FoldedProduct::prepare(device::Device& device) {
  whole_.prepare(device);
  if (rest_) rest_->prepare(device);
}

void FoldedProduct::run(const ProductOperands& operands, void* workspace, device::Stream& stream) {
  ensure(!operands.accumulate || replicas_ == 1, "gradients of several virtual replicas are complete");
  auto* const terms = static_cast<std::byte*>(workspace) + whole_lines(Product::workspace_bytes());
  const auto place = [&, slots = terms + terms_bytes()](int slot) {
    return slot == 0 ? static_cast<float*>(operands.c)
                     : reinterpret_cast<float*>(slots + (slot - 1) * whole_lines(bytes_));
  };
  ProductOperands group = operands;
  const auto make = [&](int index, int slot) {
    const int count = std::min(together_, replicas_ - index * together_);
    Product& product = count == together_ ? whole_ : *rest_;
    group.c = count == 1 ? place(slot) : reinterpret_cast<float*>(terms);
    product.run(group, workspace, stream);
    if (count > 1)
      sum_replicas(reinterpret_cast<const float*>(terms), elements(), count, elements(), place(slot), stream);
    for (int i = 0; i < count; ++i) group = group.next(product.spec());
  };
  const auto add = [&](int slot) { add_floats(place(slot), place(slot + 1), elements(), stream); };
  fold_replicas(groups(), make, add);
}

}  // namespace lockstep::ops
