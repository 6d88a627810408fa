#include "tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/hash.h"
#include "data/test_files.h"
#include "lockstep/error.h"
#include "mentions.h"
#include "tokenizer/learner.h"

namespace lockstep::tokenizer {
namespace {

using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TokenizerParts small_parts() {
  return {.tokens = {"a", "b", " ", "ab", "abab", "<|endoftext|>"},
          .special = {5},
          .merges = {{0, 1, 3}, {3, 3, 4}},
          .divides_words = true};
}

TEST(Tokenizer, OfCharactersHasTheSortedSetOfBytes) {
  const auto tokenizer = Tokenizer::of_characters("banana\xff");
  EXPECT_EQ(tokenizer.characters(), "abn\xff");
  EXPECT_TRUE(tokenizer.is_of_characters());
  EXPECT_THAT(tokenizer.encode("nab\xff"), ElementsAre(2, 0, 1, 3));
  EXPECT_EQ(tokenizer.decode(std::array<int32_t, 4>{2, 0, 1, 3}), "nab\xff");
  EXPECT_EQ(tokenizer.identity(), hash64("abn\xff"));
  EXPECT_THAT(message_of<DataError>([&] { tokenizer.encode("abc"); }), Mentions("0x63 ... 2"));
  EXPECT_THAT(message_of<DataError>([&] { tokenizer.decode(std::array<int32_t, 1>{4}); }),
              HasSubstr("found 4"));
}

TEST(Tokenizer, MergesWithinWords) {
  const Tokenizer tokenizer(small_parts());
  EXPECT_THAT(tokenizer.encode("abab ab"), ElementsAre(4, 2, 3)) << "of ' ab' the blank is a byte";
  EXPECT_THAT(tokenizer.encode("aba"), ElementsAre(3, 0));
  EXPECT_EQ(tokenizer.end_of_text(), 5);
  EXPECT_FALSE(tokenizer.is_of_characters());
}

TEST(Tokenizer, FindsNoSpecialTokensInTexts) {
  const Tokenizer learned = [] {
    Learner learner;
    learner.read("some text");
    return learner.learn(300);
  }();
  const auto tokens = learned.encode("<|endoftext|>");
  EXPECT_GT(tokens.size(), 1u);
  EXPECT_EQ(learned.decode(tokens), "<|endoftext|>");
  EXPECT_EQ(learned.decode(std::array{*learned.end_of_text()}), "<|endoftext|>");
}

TEST(Tokenizer, DecodesEveryStringOfBytesToItself) {
  Learner learner;
  learner.read(
      "the cat sat on the mat; the cat's hat. \xd0\xbd\xd0\xbe\xd1\x87\xd1\x8c "
      "\xd0\xbd\xd0\xbe\xd1\x87\xd1\x8c");
  const Tokenizer tokenizer = learner.learn(280);
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::string text(random() % 100, ' ');
    for (char& c : text) c = static_cast<char>(random() % 4 == 0 ? random() : " theca"[random() % 6]);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST(Tokenizer, RefusesPartsThatContradictEachOther) {
  const auto refusal = [](const std::function<void(TokenizerParts&)>& change) {
    TokenizerParts parts = small_parts();
    change(parts);
    return message_of<DataError>([&] { Tokenizer{parts}; });
  };
  EXPECT_THAT(refusal([](auto& parts) { parts.tokens[1] = "a"; }), Mentions("0x61 ... 0 ... 1"));
  EXPECT_THAT(refusal([](auto& parts) { parts.merges[0].left = 6; }), Mentions("merge 0 ... 6"));
  EXPECT_THAT(refusal([](auto& parts) { parts.merges[0].left = -1; }), Mentions("merge 0 ... -1"));
  EXPECT_THAT(refusal([](auto& parts) { parts.merges[1].merged = 3; }), Mentions("merge 1 ... 3"));
  EXPECT_THAT(refusal([](auto& parts) { parts.merges[1] = parts.merges[0]; }), Mentions("0 and 1 ... twice"));
  EXPECT_THAT(refusal([](auto& parts) { parts.special = {6}; }), Mentions("special ... 6"));
  EXPECT_THAT(refusal([](auto& parts) { parts = {}; }), HasSubstr("found 0"));
}

TEST(Tokenizer, IdentityIsOfWhatDecidesTokens) {
  const auto identity = [](const std::function<void(TokenizerParts&)>& change) {
    TokenizerParts parts = small_parts();
    change(parts);
    return Tokenizer(parts).identity();
  };
  const uint64_t base = identity([](auto&) {});
  EXPECT_EQ(identity([](auto&) {}), base);
  EXPECT_NE(identity([](auto& parts) { parts.divides_words = false; }), base);
  EXPECT_NE(identity([](auto& parts) { parts.merges.pop_back(); }), base);
  EXPECT_NE(identity([](auto& parts) { parts.tokens[5] = "<|end|>"; }), base);
}

}  // namespace
}  // namespace lockstep::tokenizer
