#include "base/hash.h"

#include <gtest/gtest.h>

#include <vector>

namespace lockstep {
namespace {

// The buffer and the values of xxHash's own sanity check for XXH3_64bits.
constexpr uint64_t kPrime32 = 2654435761u;
constexpr uint64_t kPrime64 = 11400714785074694797u;

std::vector<unsigned char> sanity_buffer(size_t size) {
  std::vector<unsigned char> bytes(size);
  uint64_t generator = kPrime32;
  for (auto& byte : bytes) {
    byte = static_cast<unsigned char>(generator >> 56);
    generator *= kPrime64;
  }
  return bytes;
}

TEST(Hash64, IsXxh3) {
  const auto bytes = sanity_buffer(2048);
  EXPECT_EQ(hash64(nullptr, 0), 0x2D06800538D394C2u);
  EXPECT_EQ(hash64(bytes.data(), 1), 0xC44BDFF4074EECDBu);
  EXPECT_EQ(hash64(bytes.data(), 6), 0x27B56A84CD2D7325u);
  EXPECT_EQ(hash64(bytes.data(), 80), 0xBCDEFBBB2C47C90Au);
  EXPECT_EQ(hash64(bytes.data(), 403), 0xCDEB804D65C6DEA4u);
  EXPECT_EQ(hash64(bytes.data(), 2048), 0xDD59E2C3A5F038E0u);
}

TEST(Hash64, TakesASeed) {
  EXPECT_EQ(hash64(sanity_buffer(6).data(), 6, kPrime64), 0x84589C116AB59AB9u);
  EXPECT_NE(hash64("lockstep", 1), hash64("lockstep", 2));
}

TEST(Hash64, OfTextIsThatOfItsBytes) {
  const std::string text = "weights";
  EXPECT_EQ(hash64(text), hash64(text.data(), 7));
  EXPECT_NE(hash64("weights"), hash64("weightz"));
}

TEST(HashCombine, DependsOnOrder) {
  EXPECT_NE(hash_combine(1, 2), hash_combine(2, 1));
  EXPECT_NE(hash_combine(0, 0), 0u);
  const uint64_t pair[2] = {7, 9};
  EXPECT_EQ(hash_combine(7, 9), hash64(pair, 16));
}

TEST(ToHex, HasSixteenLowerCaseDigits) {
  EXPECT_EQ(to_hex(0), "0000000000000000");
  EXPECT_EQ(to_hex(0xDEADBEEF), "00000000deadbeef");
  EXPECT_EQ(to_hex(~uint64_t{0}), "ffffffffffffffff");
}

using Crc = uint32_t (*)(const void*, size_t, uint32_t);

class Crc32c : public testing::TestWithParam<Crc> {};
INSTANTIATE_TEST_SUITE_P(Implementations, Crc32c, testing::Values(&crc32c, &crc32c_by_tables),
                         [](const auto& info) { return info.index == 0 ? "Chosen" : "ByTables"; });

// RFC 3720, B.4, and the usual check value.
TEST_P(Crc32c, KnownVectors) {
  EXPECT_EQ(GetParam()("123456789", 9, 0), 0xE3069283u);
  EXPECT_EQ(GetParam()(nullptr, 0, 0), 0u);
  std::vector<unsigned char> bytes(32, 0x00);
  EXPECT_EQ(GetParam()(bytes.data(), 32, 0), 0x8A9136AAu);
  bytes.assign(32, 0xFF);
  EXPECT_EQ(GetParam()(bytes.data(), 32, 0), 0x62A8AB43u);
  for (size_t i = 0; i < 32; ++i) bytes[i] = static_cast<unsigned char>(i);
  EXPECT_EQ(GetParam()(bytes.data(), 32, 0), 0x46DD794Eu);
  for (size_t i = 0; i < 32; ++i) bytes[i] = static_cast<unsigned char>(31 - i);
  EXPECT_EQ(GetParam()(bytes.data(), 32, 0), 0x113FDB5Cu);
}

TEST_P(Crc32c, ContinuesWhereItStopped) {
  const char* text = "123456789";
  for (size_t cut = 0; cut <= 9; ++cut) {
    const uint32_t first = GetParam()(text, cut, 0);
    EXPECT_EQ(GetParam()(text + cut, 9 - cut, first), 0xE3069283u) << "cut at " << cut;
  }
}

TEST_P(Crc32c, IsTheSameForEveryLengthAndAlignment) {
  // Bit by bit, straight from the definition.
  const auto bytes = sanity_buffer(100);
  for (size_t begin = 0; begin < 9; ++begin)
    for (size_t size = 0; begin + size <= 100; size += 7) {
      uint32_t expected = ~0u;
      for (size_t i = begin; i < begin + size; ++i) {
        expected ^= bytes[i];
        for (int bit = 0; bit < 8; ++bit)
          expected = (expected >> 1) ^ ((expected & 1) != 0 ? 0x82F63B78u : 0u);
      }
      EXPECT_EQ(GetParam()(bytes.data() + begin, size, 0), ~expected) << begin << "+" << size;
    }
}

}  // namespace
}  // namespace lockstep
