#include "program/blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "mentions.h"

namespace lockstep::program {
namespace {

using layout::ByteSpan;
using testing::ElementsAre;
using testing::HasSubstr;

// Four ranks: blocks of 64 bytes from rank 3 on, the last of 16; then 32 bytes more for rank 0.
const Blocks kBlocks{{0, 208, 64, 3}, {224, 256, 32, 0}};

TEST(Blocks, GoAroundFromTheFirstOwner) {
  EXPECT_THAT(block_of(kBlocks, 3, 4), ElementsAre(ByteSpan{0, 64}));
  EXPECT_THAT(block_of(kBlocks, 0, 4), ElementsAre(ByteSpan{64, 128}, ByteSpan{224, 256}));
  EXPECT_THAT(block_of(kBlocks, 1, 4), ElementsAre(ByteSpan{128, 192}));
  EXPECT_THAT(block_of(kBlocks, 2, 4), ElementsAre(ByteSpan{192, 208}));
}

TEST(Blocks, HaveSizes) {
  EXPECT_EQ(block_bytes(kBlocks, 0, 4), 96);
  EXPECT_EQ(block_bytes(kBlocks, 2, 4), 16);
  EXPECT_EQ(largest_block_bytes(kBlocks, 4), 96);
  EXPECT_EQ(bytes_of(kBlocks), 240);
  const Blocks equal{{0, 100, 64, 1}};
  EXPECT_EQ(largest_block_bytes(equal, 3), 64);
  EXPECT_EQ(largest_block_bytes({{0, 100, 200, 1}}, 3), 100);
  EXPECT_THAT(block_of(equal, 0, 3), ElementsAre()) << "an empty block";
}

TEST(Blocks, CoverSpans) {
  EXPECT_THAT(covered_by(kBlocks), ElementsAre(ByteSpan{0, 208}, ByteSpan{224, 256}));
  EXPECT_THAT(covered_by({{0, 64, 64, 1}, {64, 96, 32, 0}}), ElementsAre(ByteSpan{0, 96}));
}

TEST(Blocks, AreWrittenInOneWord) { EXPECT_EQ(to_text(kBlocks), "0+208/64@3,224+32@0"); }

TEST(Blocks, OfAnOperandAscendWithinIt) {
  EXPECT_EQ(fault_of(kBlocks, 256, 4, 4), "");
  EXPECT_EQ(fault_of({}, 256, 4, 4), "it has no blocks");
  for (const Blocks& wrong :
       {Blocks{{0, 256, 64, 0}, {192, 256, 64, 0}}, Blocks{{64, 128, 64, 0}, {0, 64, 64, 1}},
        Blocks{{-64, 64, 64, 0}}, Blocks{{64, 64, 64, 0}}, Blocks{{64, 0, 64, 0}}, Blocks{{0, 260, 260, 0}}})
    EXPECT_THAT(fault_of(wrong, 256, 4, 4), Mentions("256 bytes ... ascending"));
}

TEST(Blocks, AreOnePieceOfARunForEachRankAtMost) {
  for (const int64_t each : {int64_t{0}, int64_t{-1}, int64_t{63}, std::numeric_limits<int64_t>::min()})
    EXPECT_THAT(fault_of({{0, 256, each, 0}}, 256, 4, 4), Mentions("one ... 4 ranks"));
  EXPECT_EQ(fault_of({{0, 256, std::numeric_limits<int64_t>::max(), 0}}, 256, 4, 4), "");
  for (const int owner : {-1, 4})
    EXPECT_THAT(fault_of({{0, 256, 64, owner}}, 256, 4, 4), HasSubstr("of a group of 4"));
}

TEST(Blocks, AreWholeElements) {
  for (const BlockRun& wrong : {BlockRun{2, 64, 62, 0}, BlockRun{0, 62, 62, 0}, BlockRun{0, 64, 30, 0}})
    EXPECT_THAT(fault_of({wrong}, 256, 4, 4), HasSubstr("elements of 4 bytes"));
  EXPECT_EQ(fault_of({{0, 64, 30, 0}}, 256, 4, 1), "") << "bytes that are only moved";
}

TEST(Blocks, MayBeCutIntoPiecesOfAnySize) {
  const Blocks one{{64, 128, std::numeric_limits<int64_t>::max() - 3, 0}};
  ASSERT_EQ(fault_of(one, 128, 2, 4), "");
  EXPECT_EQ(block_of(one, 0, 2), (std::vector<layout::ByteSpan>{{64, 128}}));
  EXPECT_EQ(block_bytes(one, 0, 2), 64);
  EXPECT_EQ(largest_block_bytes(one, 2), 64);
}

}  // namespace
}  // namespace lockstep::program
