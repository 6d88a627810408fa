#pragma once

#include <cstdint>

namespace lockstep::ops {

/// Calls work(i) for every i in [0, count), on up to `threads` OpenMP threads; each thread takes one
/// contiguous range. REQUIRES: calls touch different memory, so that results do not depend on `threads`; work
/// does not throw.
template <class Work>
void parallel_for(int threads, int64_t count, const Work& work) {
  if (threads <= 1 || count <= 1) {
    for (int64_t i = 0; i < count; ++i) work(i);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < count; ++i) work(i);
}

/// Calls work(begin, end) for consecutive pieces of [0, count) of at most `piece` elements, as parallel_for
/// does.
template <class Work>
void parallel_pieces(int threads, int64_t count, int64_t piece, const Work& work) {
  parallel_for(threads, (count + piece - 1) / piece, [&](int64_t i) {
    const int64_t begin = i * piece;
    work(begin, begin + piece < count ? begin + piece : count);
  });
}

}  // namespace lockstep::ops
