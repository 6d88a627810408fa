#pragma once

#include <cstdint>
#include <vector>

#include "net/case.h"

namespace lockstep::net {

/// Of an op. ThreadSanitizer does not see the barriers of GNU's OpenMP.
#ifdef __SANITIZE_THREAD__
inline constexpr int kMostThreads = 1;
#else
inline constexpr int kMostThreads = 4;
#endif

struct GeneratorOptions {
  bool on_gpu = false;    ///< cases for the emulated GPU
  bool pipelines = true;  ///< false: layouts of one stage alone
};

/// The case of a seed. Layouts that a model or batch has no use for are drawn again, and left in `refused`,
/// unless that is null; what is returned compiles.
Case generate_case(uint64_t seed, const GeneratorOptions& options = {},
                   std::vector<layout::Layout>* refused = nullptr);

/// Whether its layout, and one rank, can be compiled.
bool is_possible(const Case& test_case);

/// The seed of the case with this number in a run of many.
uint64_t seed_of_case(uint64_t run_seed, int64_t number);

}  // namespace lockstep::net
