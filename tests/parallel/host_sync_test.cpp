#include "parallel/host_sync.h"

#include <gtest/gtest.h>

namespace lockstep::parallel {
namespace {

layout::BatchDivision division_of(int leaves, int workers) {
  return layout::divide_batch(leaves, 0, leaves, layout::Reduction::reproducible, workers);
}

TEST(HostSync, OrdersHostsByTheirFirstWorkers) {
  EXPECT_EQ(workers_by_host({7, 3, 7, 3, 5}, 0, 5), (HostWorkers{{0, 2}, {1, 3}, {4}}));
  EXPECT_EQ(workers_by_host({9, 9, 3, 3, 3}, 2, 3), (HostWorkers{{0, 1, 2}})) << "of a later stage";
}

TEST(HostSync, SumsAcrossHostsIfThereIsSomethingToSumWithinThem) {
  EXPECT_TRUE(sums_across_hosts({{0, 1}, {2}}));
  EXPECT_FALSE(sums_across_hosts({{0}, {1}, {2}}));
  EXPECT_FALSE(sums_across_hosts({{0, 1, 2}}));
}

TEST(HostSync, FollowsTheCanonicalTreeOnlyInItsOrder) {
  EXPECT_TRUE(hosts_follow_tree({{0, 1}, {2, 3}}, division_of(8, 4)));
  EXPECT_TRUE(hosts_follow_tree({{0, 1}, {2, 3}, {4, 5}}, division_of(6, 6)));
  EXPECT_TRUE(hosts_follow_tree({{0, 1, 2, 3}, {4, 5, 6}}, division_of(7, 7)));
  EXPECT_FALSE(hosts_follow_tree({{0, 2}, {1, 3}}, division_of(8, 4))) << "by turns";
  EXPECT_FALSE(hosts_follow_tree({{0, 1, 2}, {3, 4, 5}}, division_of(6, 6))) << "no power of two";
  EXPECT_FALSE(hosts_follow_tree({{0}, {1, 2}}, division_of(3, 3))) << "the smaller one first";
}

}  // namespace
}  // namespace lockstep::parallel
