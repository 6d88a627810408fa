#include <algorithm>

#include "base/ensure.h"
#include "ops/cuda/column_sum_kernel.h"
#include "ops/cuda/replica_sum.h"

namespace lockstep::ops {
namespace {

constexpr int64_t kRowsPerThread = 8;  // at the least: below that, more parts only make more partial sums
constexpr int64_t kMostBlocks = 1024;  // 8 on each of an H200's 132 multiprocessors

int64_t pack_of(int64_t columns, DType dtype) {
  const int64_t widest = 16 / size_of(dtype);
  return columns % widest == 0 ? widest : 1;
}

int64_t whole_packs(int64_t floats) { return (floats + 3) / 4 * 4; }

}  // namespace

ColumnSum::ColumnSum(int64_t rows, int64_t columns, DType dtype, int replicas)
    : rows_(rows), columns_(columns), dtype_(dtype), replicas_(replicas) {
  const ColumnTiling tiling(columns, pack_of(columns, dtype));
  const int64_t wanted = rows / (tiling.row_lanes() * kRowsPerThread);
  parts_ = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, kMostBlocks / tiling.tiles));
}

int64_t ColumnSum::workspace_bytes() const {
  const int64_t of_parts = parts_ == 1 ? 0 : replicas_ * parts_ * columns_;
  const int64_t of_replicas = replicas_ == 1 ? 0 : replicas_ * columns_;
  return (whole_packs(of_parts) + of_replicas) * int64_t{sizeof(float)};
}

float* ColumnSum::of_replicas(float* sums, void* workspace) const {
  if (replicas_ == 1) return sums;
  return static_cast<float*>(workspace) + (parts_ == 1 ? 0 : whole_packs(replicas_ * parts_ * columns_));
}

ColumnSum::Parts ColumnSum::parts_of(float* sums, bool accumulate, void* workspace) const {
  ensure(!accumulate || replicas_ == 1, "sums of several virtual replicas are complete");
  if (parts_ == 1) return {of_replicas(sums, workspace), accumulate};
  return {static_cast<float*>(workspace), false};
}

void ColumnSum::finish(float* sums, bool accumulate, void* workspace, device::Stream& stream) const {
  float* const each = of_replicas(sums, workspace);
  // A column for each thread: what there is left is little, and more blocks share it.
  if (parts_ > 1)
    launch_column_sum<1>(StoredColumns<float, 1>{static_cast<float*>(workspace)}, replicas_, parts_, columns_,
                         1, each, accumulate, stream);
  if (replicas_ > 1) sum_replicas(each, columns_, replicas_, columns_, sums, stream);
}

void ColumnSum::run(const void* x, float* sums, bool accumulate, void* workspace,
                    device::Stream& stream) const {
  with_element_type(dtype_, [&]<class T>(T) {
    sum_columns<T>(
        *this,
        [&]<int N>(std::integral_constant<int, N>) { return StoredColumns<T, N>{static_cast<const T*>(x)}; },
        sums, accumulate, workspace, stream);
  });
}

}  // namespace lockstep::ops
