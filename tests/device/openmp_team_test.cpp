#include "device/openmp_team.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <atomic>

#include "lockstep/error.h"

namespace lockstep::device {
namespace {

std::atomic<int> team{0};  // ThreadSanitizer does not know OpenMP's barriers

TEST(OpenMpTeam, HasExactlyAsManyThreadsWhereOpenMpMightTakeFewer) {
  omp_set_dynamic(1);
  require_openmp_team(3);
  EXPECT_EQ(omp_get_dynamic(), 0);
  EXPECT_EQ(omp_get_max_threads(), 3);
#pragma omp parallel
  team.store(omp_get_num_threads());
  EXPECT_EQ(team.load(), 3);
}

TEST(OpenMpTeam, IsRefusedWhereOpenMpStartsFewer) {
  const int levels = omp_get_max_active_levels();
  omp_set_max_active_levels(0);
  try {
    require_openmp_team(2);
    FAIL() << "a team of two was taken for one";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("OMP_MAX_ACTIVE_LEVELS=0"));
  }
  omp_set_max_active_levels(levels);
}

}  // namespace
}  // namespace lockstep::device
