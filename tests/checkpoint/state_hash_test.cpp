#include "checkpoint/state_hash.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/hash.h"
#include "lockstep/error.h"

namespace lockstep::checkpoint {
namespace {

class StateHash : public ::testing::Test {
 protected:
  StateHash() : values_(150'000) { std::iota(values_.begin(), values_.end(), 0.0f); }
  NamedTensor tensor(const std::string& name, int64_t count, int64_t first = 0) const {
    return {name, DType::float32, Shape{count}, values_.data() + first};
  }
  std::vector<float> values_;
};

TEST_F(StateHash, FoldsChunksOf65536ElementsInOrder) {
  const auto* data = values_.data();
  const std::vector<uint64_t> expected{hash64(data, 4 * 65'536), hash64(data + 65'536, 4 * 65'536),
                                       hash64(data + 131'072, 4 * 18'928)};
  EXPECT_EQ(chunk_hashes(data, DType::float32, 150'000), expected);
  EXPECT_EQ(tensor_hash(tensor("a", 150'000)), fold_chunks(expected));
  EXPECT_EQ(fold_chunks(expected),
            hash_combine(hash_combine(hash_combine(3, expected[0]), expected[1]), expected[2]));
  EXPECT_TRUE(chunk_hashes(data, DType::float32, 0).empty());
  EXPECT_EQ(chunk_hashes(data, DType::float32, 65'536).size(), 1u);
  EXPECT_EQ(chunk_hashes(data, DType::float32, 65'537).size(), 2u);
}

TEST_F(StateHash, OwnersOfPartsComputeItTogether) {
  const auto* data = values_.data();
  auto chunks = chunk_hashes(data, DType::float32, 65'536);
  const auto rest = chunk_hashes(data + 65'536, DType::float32, 150'000 - 65'536);
  chunks.insert(chunks.end(), rest.begin(), rest.end());
  EXPECT_EQ(fold_chunks(chunks), tensor_hash(tensor("a", 150'000)));
}

TEST_F(StateHash, OfAPartIsThatOfItsChunks) {
  const auto* data = values_.data();
  NamedTensor part = tensor("a", 150'000, 65'536);
  part.part = tensor::Part::range(65'536, 65'536);
  EXPECT_EQ(hashed_chunks_of(part), (TensorChunks{"a", 1, {hash64(data + 65'536, 4 * 65'536)}}));
  for (const auto& wrong : {tensor::Part::range(65'536, 65'535), tensor::Part::range(65'537, 84'463),
                            tensor::Part::strided(0, 65'536, 2, 84'464)}) {
    part.part = wrong;
    EXPECT_THROW(hashed_chunks_of(part), InternalError) << describe(wrong);
  }
}

TEST_F(StateHash, IsOfNamesAndBitsInNoParticularOrder) {
  const auto a = tensor("a", 10), b = tensor("b", 20, 5);
  const auto hash = parameters_hash(std::vector{a, b});
  EXPECT_EQ(parameters_hash(std::vector{b, a}), hash);
  EXPECT_NE(parameters_hash(std::vector{tensor("b", 10), tensor("a", 20, 5)}), hash);
  EXPECT_NE(parameters_hash(std::vector{a, tensor("b", 20, 6)}), hash);
  EXPECT_NE(parameters_hash(std::vector{a}), hash);
  EXPECT_EQ(fold_tensors({{"b", tensor_hash(b)}, {"a", tensor_hash(a)}}), hash);
}

TEST_F(StateHash, TellsZeroFromMinusZero) {
  const float zero = 0.0f, minus = -0.0f;
  EXPECT_NE(tensor_hash({"a", DType::float32, Shape{}, &zero}),
            tensor_hash({"a", DType::float32, Shape{}, &minus}));
}

}  // namespace
}  // namespace lockstep::checkpoint
