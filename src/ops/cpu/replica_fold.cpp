#include "ops/cpu/replica_fold.h"

#include <algorithm>

#include "ops/cpu/loops/loops.h"
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
  const int64_t each = rows / replicas;
  ReplicaFold(replicas, columns, 1).run(sums, accumulate, workspace, [&](int replica, float* to) {
    if (!accumulate) std::fill_n(to, columns, 0.0f);
    loops().add_rows(to, x + replica * each * columns, each, columns);
  });
}

int64_t column_chain_bytes(int64_t columns, int replicas) {
  return ReplicaFold(replicas, columns, 1).floats() * static_cast<int64_t>(sizeof(float));
}

}  // namespace lockstep::ops
