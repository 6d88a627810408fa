#include "device/openmp_team.h"

#include <fmt/format.h>
#include <omp.h>

#include <atomic>
#include <string>

#include "lockstep/error.h"

namespace lockstep::device {
namespace {

/// All threads of a team write the same; outside of the stack and atomic, since ThreadSanitizer does not know
/// OpenMP's barriers.
std::atomic<int> counted_team{0};

int count_team(int threads) {
#pragma omp parallel num_threads(threads)
  counted_team.store(omp_get_num_threads(), std::memory_order_relaxed);
  return counted_team.load(std::memory_order_relaxed);
}

/// Which variable of the environment keeps OpenMP from starting so many threads.
std::string cause_of_fewer(int threads) {
  if (omp_get_thread_limit() < threads)
    return fmt::format("OMP_THREAD_LIMIT={} allows no more; unset it", omp_get_thread_limit());
  if (omp_get_max_active_levels() < 1) return "OMP_MAX_ACTIVE_LEVELS=0 allows no more; unset it";
  return "its runtime allows no more; unset the variables OMP_*";
}

}  // namespace

void set_openmp_team(int threads) {
  omp_set_dynamic(0);
  omp_set_num_threads(threads);
}

void require_openmp_team(int threads) {
  set_openmp_team(threads);
  if (const int count = count_team(threads); count != threads)
    throw ConfigError(fmt::format(
        "parallel.intra_op_threads is {}, but OpenMP starts {}: {}, or set parallel.intra_op_threads to {}",
        threads, count, cause_of_fewer(threads), count));
}

}  // namespace lockstep::device
