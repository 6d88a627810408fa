#include "ops/cpu/replica_fold.h"

#include <algorithm>

#include "base/ensure.h"
#include "ops/cpu/parallel.h"

namespace lockstep::ops {

void add_numbers(float* to, const float* from, int64_t count, int threads) {
  constexpr int64_t kPiece = 16384;
  parallel_pieces(threads, count, kPiece, [=](int64_t begin, int64_t end) {
    float* __restrict sums = to;
    const float* __restrict terms = from;
    for (int64_t i = begin; i < end; ++i) sums[i] += terms[i];
  });
}

void column_chains(const float* x, int64_t rows, int64_t columns, int replicas, bool accumulate, float* sums,
                   float* workspace) {
  ensure(!accumulate || replicas == 1, "sums of several replicas are complete");
  const int64_t each = rows / replicas;
  const auto place = [&](int slot) { return slot == 0 ? sums : workspace + (slot - 1) * columns; };
  const auto make = [&](int replica, int slot) {
    float* __restrict to = place(slot);
    if (!accumulate) std::fill_n(to, columns, 0.0f);
    for (int64_t row = replica * each; row < (replica + 1) * each; ++row) {
      const float* __restrict from = x + row * columns;
      for (int64_t column = 0; column < columns; ++column) to[column] += from[column];
    }
  };
  const auto add = [&](int slot) { add_numbers(place(slot), place(slot + 1), columns, 1); };
  fold_replicas(replicas, make, add);
}

int64_t column_chain_bytes(int64_t columns, int replicas) {
  return (fold_slots(replicas) - 1) * columns * static_cast<int64_t>(sizeof(float));
}

}  // namespace lockstep::ops
