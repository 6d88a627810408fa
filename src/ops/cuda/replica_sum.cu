#include "base/ensure.h"
#include "ops/cuda/map.h"
#include "ops/cuda/replica_sum.h"

namespace lockstep::ops {
namespace {

constexpr int kSumThreads = 256;
constexpr int kStack = 11;  // nodes of a tree of 1024 leaves that are not added yet
static_assert(1 << (kStack - 1) == kMostReplicaTerms);

using Pack = ElementPack<float>;

__device__ Pack sum_of(const Pack& left, const Pack& right) {
  Pack sum;
#pragma unroll
  for (int e = 0; e < kPackElements<float>; ++e) sum.value[e] = left.value[e] + right.value[e];
  return sum;
}

/// A pack for each thread, whose leaves it takes in ascending order (fold_replicas). Reads each term once,
/// which is what there is to move; the stack stays in the first cache.
__global__ void __launch_bounds__(kSumThreads)
    sum_replicas_kernel(const float* terms, int64_t stride, int replicas, int64_t count, float* sums) {
  const bool packed = stride % kPackElements<float> == 0;
  const int64_t at = (int64_t{blockIdx.x} * kSumThreads + threadIdx.x) * kPackElements<float>;
  if (at >= count) return;
  Pack stack[kStack];
  int filled = 0;
  for (int replica = 0; replica < replicas; ++replica) {
    Pack node = load_elements(terms + replica * stride + at, count - at, packed);
    for (int nodes = replica + 1; nodes % 2 == 0; nodes /= 2) node = sum_of(stack[--filled], node);
    stack[filled++] = node;
  }
  Pack sum = stack[--filled];
  while (filled > 0) sum = sum_of(stack[--filled], sum);
  store_elements(sums + at, sum, count - at);
}

}  // namespace

void add_floats(float* to, const float* from, int64_t count, device::Stream& stream) {
  launch_map(stream, to, to, from, count, SumOfTwo{});
}

void sum_replicas(const float* terms, int64_t stride, int replicas, int64_t count, float* sums,
                  device::Stream& stream) {
  ensure(replicas >= 1 && replicas <= kMostReplicaTerms, "a sum of virtual replicas has at most 1024 terms");
  device::launch(stream,
                 {.blocks = device::blocks_for(count, kSumThreads * kPackElements<float>, 0x7fffffff),
                  .threads = kSumThreads},
                 sum_replicas_kernel, terms, stride, replicas, count, sums);
}

}  // namespace lockstep::ops
