#include "tokenizer/learner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "data/test_files.h"
#include "lockstep/error.h"
#include "tokenizer/words.h"

namespace lockstep::tokenizer {
namespace {

using test::message_of;
using ::testing::HasSubstr;

Tokenizer learned_merges(const std::string& text, int64_t vocabulary) {
  Learner learner;
  learner.read(text);
  return learner.learn(vocabulary);
}

TEST(Learner, MergesTheMostFrequentPair) {
  const Tokenizer tokenizer = learned_merges("low low low lower", 259);
  EXPECT_EQ(tokenizer.size(), 259);
  const auto& tokens = tokenizer.parts().tokens;
  // "lo" and "ow" occur four times; 'l' comes first.
  EXPECT_EQ(tokens[256], "lo");
  EXPECT_EQ(tokens[257], "low");
  EXPECT_EQ(tokens[258], "<|endoftext|>");
}

TEST(Learner, EndsWhenNoPairOccursTwice) {
  EXPECT_EQ(learned_merges("abc", 1000).size(), 257);
  EXPECT_EQ(learned_merges("", 300).size(), 257);
  EXPECT_EQ(learned_merges("ab ab", 1000).parts().tokens[256], "ab");
}

TEST(Learner, RefusesAVocabularyWithoutRoomForBytes) {
  EXPECT_THAT(message_of<ConfigError>([] { learned_merges("a", 256); }), HasSubstr("256"));
  EXPECT_EQ(learned_merges("aaaa", 257).parts().merges.size(), 0u);
}

/// All pairs are counted again for each merge.
std::vector<Merge> learned_by_the_rule(const std::string& text, size_t most) {
  const auto order = bytes_in_gpt2_order();
  std::vector<std::vector<int32_t>> words;
  for (size_t begin = 0; begin < text.size();) {
    auto& word = words.emplace_back();
    for (const size_t end = word_end(text, begin); begin < end; ++begin)
      word.push_back(
          static_cast<int32_t>(std::ranges::find(order, static_cast<uint8_t>(text[begin])) - order.begin()));
  }
  std::vector<Merge> merges;
  while (merges.size() < most) {
    std::map<std::pair<int32_t, int32_t>, int64_t> counts;
    for (const auto& word : words)
      for (size_t i = 0; i + 1 < word.size(); ++i) ++counts[{word[i], word[i + 1]}];
    const auto best =
        std::ranges::max_element(counts, [](const auto& a, const auto& b) { return a.second < b.second; });
    if (best == counts.end() || best->second < 2) break;
    const Merge merge{best->first.first, best->first.second, static_cast<int32_t>(256 + merges.size())};
    const MergeTable table({merge});
    for (auto& word : words) table.apply(word);
    merges.push_back(merge);
  }
  return merges;
}

TEST(Learner, LearnsWhatCountingAgainWouldLearn) {
  std::mt19937 random(11);
  for (int round = 0; round < 10; ++round) {
    std::string text(600, ' ');
    for (char& c : text) c = "aaabbc d\n"[random() % 9];
    EXPECT_EQ(learned_merges(text, 300).parts().merges, learned_by_the_rule(text, 300 - 257)) << text;
  }
}

TEST(Learner, MayReadInPieces) {
  const std::string text = "the cat sat on the mat\n\nand the hat sat on the cat, they say";
  Learner pieces;
  const size_t division = last_division(std::string_view(text).substr(0, 30));
  pieces.read(std::string_view(text).substr(0, division));
  pieces.read(std::string_view(text).substr(division));
  EXPECT_EQ(pieces.learn(280), learned_merges(text, 280));
}

}  // namespace
}  // namespace lockstep::tokenizer
