#include "parallel/ring_sync.h"

#include <gtest/gtest.h>

namespace lockstep::parallel {
namespace {

using program::Blocks;

TEST(EqualBlocks, BeginWithTheLastWorkersOnBordersOf64Bytes) {
  EXPECT_EQ(equal_blocks(192, 3), (Blocks{{0, 192, 64, 2}}));
  EXPECT_EQ(equal_blocks(4096, 4), (Blocks{{0, 4096, 1024, 3}}));
  EXPECT_EQ(equal_blocks(320, 2), (Blocks{{0, 320, 192, 1}})) << "192 and 128 bytes";
  EXPECT_EQ(equal_blocks(128, 1), (Blocks{{0, 128, 128, 0}}));
}

TEST(EqualBlocks, LeaveWhatDividingLeavesToTheOneThatComesLast) {
  EXPECT_EQ(equal_blocks(324, 5), (Blocks{{0, 256, 64, 4}, {256, 324, 68, 3}}));
  EXPECT_EQ(equal_blocks(64, 100), (Blocks{{0, 64, 64, 98}})) << "less than a byte for each";
}

TEST(EqualBlocks, AreSound) {
  for (int64_t size = 4; size < 3000; size += 4)
    for (const int workers : {2, 3, 5, 8, 100}) {
      const Blocks blocks = equal_blocks(size, workers);
      EXPECT_EQ(fault_of(blocks, size, workers, 4), "") << size << " bytes, " << workers << " workers";
      EXPECT_EQ(bytes_of(blocks), size);
    }
}

TEST(BlocksOfShards, LeaveOutEmptyOnesAndAscend) {
  // Worker 1 has two parts, the second of them behind everybody's; worker 2 has none.
  const std::vector<std::vector<layout::ByteSpan>> parts{{{0, 64}}, {{64, 96}, {128, 160}}, {}, {{96, 128}}};
  const Shards shards{.position = [](int worker) { return worker; },
                      .parts =
                          [&](int first, int last) {
                            std::vector<layout::ByteSpan> all;
                            for (int p = first; p < last; ++p)
                              all.insert(all.end(), parts[static_cast<size_t>(p)].begin(),
                                         parts[static_cast<size_t>(p)].end());
                            return all;
                          }};
  EXPECT_EQ(blocks_of(shards, 4),
            (Blocks{{0, 64, 64, 0}, {64, 96, 32, 1}, {96, 128, 32, 3}, {128, 160, 32, 1}}));
}

}  // namespace
}  // namespace lockstep::parallel
