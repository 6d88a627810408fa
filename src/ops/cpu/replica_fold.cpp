#include "ops/cpu/replica_fold.h"

#include <algorithm>

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

namespace {

/// to[column] goes on with the rows' chain, for kColumns columns, which stay in registers.
template <int kColumns>
void add_rows(float* to, const float* from, int64_t rows, int64_t stride) {
  float sums[kColumns];
  for (int column = 0; column < kColumns; ++column) sums[column] = to[column];
  for (int64_t row = 0; row < rows; ++row, from += stride)
    for (int column = 0; column < kColumns; ++column) sums[column] += from[column];
  for (int column = 0; column < kColumns; ++column) to[column] = sums[column];
}

/// The same for at most kMost columns.
template <int kMost = 31>
void add_few(int64_t columns, float* to, const float* from, int64_t rows, int64_t stride) {
  if (columns == kMost)
    add_rows<kMost>(to, from, rows, stride);
  else if constexpr (kMost > 1)
    add_few<kMost - 1>(columns, to, from, rows, stride);
}

}  // namespace

void column_chains(const float* x, int64_t rows, int64_t columns, int replicas, bool accumulate, float* sums,
                   float* workspace) {
  const int64_t each = rows / replicas;
  ReplicaFold(replicas, columns, 1).run(sums, accumulate, workspace, [&](int replica, float* to) {
    if (!accumulate) std::fill_n(to, columns, 0.0f);
    constexpr int kMany = 128, kAtOnce = 32;  // many chains at once hide the time that each addition takes
    const float* from = x + replica * each * columns;
    int64_t column = 0;
    for (; column + kMany <= columns; column += kMany)
      add_rows<kMany>(to + column, from + column, each, columns);
    for (; column + kAtOnce <= columns; column += kAtOnce)
      add_rows<kAtOnce>(to + column, from + column, each, columns);
    if (column < columns) add_few(columns - column, to + column, from + column, each, columns);
  });
}

int64_t column_chain_bytes(int64_t columns, int replicas) {
  return ReplicaFold(replicas, columns, 1).floats() * static_cast<int64_t>(sizeof(float));
}

}  // namespace lockstep::ops
