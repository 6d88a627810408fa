#include "tokenizer/tokenizer_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "data/test_files.h"
#include "lockstep/error.h"
#include "mentions.h"
#include "tokenizer/learner.h"

namespace lockstep::tokenizer {
namespace {

using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

Tokenizer learned_tokenizer() {
  Learner learner;
  learner.read(
      "the cat sat on the mat; the cat's hat. \xd0\xbd\xd0\xbe\xd1\x87\xd1\x8c "
      "\xd0\xbd\xd0\xbe\xd1\x87\xd1\x8c \x01\x01");
  return learner.learn(290);
}

TEST(TokenizerFile, ReadsBackWhatItWrote) {
  for (const Tokenizer& tokenizer : {learned_tokenizer(), Tokenizer::of_characters("hello \n\xff"),
                                     Tokenizer::of_characters(std::string("\0a", 2))}) {
    const Tokenizer read = tokenizer_from_json(to_json(tokenizer), "name");
    EXPECT_EQ(read, tokenizer);
    EXPECT_EQ(read.identity(), tokenizer.identity());
    EXPECT_EQ(to_json(read), to_json(tokenizer));
  }
}

TEST(TokenizerFile, ReadsMergesAsPairsToo) {
  Json json = Json::parse(to_json(learned_tokenizer()));
  for (auto& merge : json["model"]["merges"]) {
    const std::string pair = merge;
    merge = Json::array({pair.substr(0, pair.find(' ')), pair.substr(pair.find(' ') + 1)});
  }
  EXPECT_EQ(tokenizer_from_json(json.dump(), "name"), learned_tokenizer());
}

TEST(TokenizerFile, ReadsMergesAlone) {
  // U+0120 stands for the blank.
  const Tokenizer tokenizer = tokenizer_from_merges("#version: 0.2\n\xc4\xa0 t\nh e\n\xc4\xa0t he\n", "name");
  EXPECT_EQ(tokenizer.size(), 256 + 3 + 1);
  EXPECT_THAT(tokenizer.encode(" the"), ElementsAre(258));
  EXPECT_EQ(tokenizer.end_of_text(), 259);
  EXPECT_EQ(tokenizer.token_of('!'), 0);
  EXPECT_EQ(tokenizer.token_of(' '), 220) << "as GPT-2 numbers bytes";
  EXPECT_EQ(tokenizer_from_merges("h e\r\n", "name").size(), 258);
}

TEST(TokenizerFile, NamesTheLineThatIsNoMerge) {
  const auto refusal = [](const std::string& text) {
    return message_of<DataError>([&] { tokenizer_from_merges(text, "some/merges"); });
  };
  EXPECT_THAT(refusal("h e\nhe\n"), Mentions("some/merges ... line 2"));
  EXPECT_THAT(refusal("h e\na b c\n"), Mentions("some/merges ... line 2"));
  EXPECT_THAT(refusal("h e\nab c\n"), Mentions("some/merges ... line 2 ... ab"));
  EXPECT_THAT(refusal("h \xe2\x82\xac\n"), Mentions("some/merges ... line 1"));
  EXPECT_THAT(refusal("h e\nh e\n"), Mentions("some/merges ... twice"));
  EXPECT_THAT(refusal("#version: 0.2\n"), HasSubstr("found none"));
}

TEST(TokenizerFile, RefusesWhatItWouldReadWrongly) {
  const auto refusal = [](const std::function<void(Json&)>& change) {
    Json json = Json::parse(to_json(learned_tokenizer()));
    change(json);
    return message_of<DataError>([&] { tokenizer_from_json(json.dump(), "some/file"); });
  };
  EXPECT_THAT(refusal([](Json& json) {
                json["normalizer"] = {{"type", "NFC"}};
              }),
              Mentions("some/file ... normalizer"));
  EXPECT_THAT(refusal([](Json& json) { json["pre_tokenizer"]["type"] = "Whitespace"; }),
              Mentions("pre_tokenizer"));
  EXPECT_THAT(refusal([](Json& json) { json["pre_tokenizer"]["add_prefix_space"] = true; }),
              Mentions("add_prefix_space"));
  EXPECT_THAT(refusal([](Json& json) { json["model"]["type"] = "Unigram"; }), Mentions("BPE"));
  EXPECT_THAT(refusal([](Json& json) { json["model"]["end_of_word_suffix"] = "</w>"; }),
              Mentions("end_of_word_suffix"));
  EXPECT_THAT(refusal([](Json& json) { json["model"]["vocab"]["!"] = 100000; }), Mentions("gaps ... 0"));
  EXPECT_THAT(refusal([](Json& json) { json["model"]["vocab"]["!"] = 1; }), Mentions("1 ... twice"));
  EXPECT_THAT(refusal([](Json& json) { json["model"]["merges"].push_back("zz zz"); }), Mentions("zz"));
  EXPECT_THAT(refusal([](Json& json) { json["model"]["merges"].push_back(7); }), HasSubstr("some/file"));
  EXPECT_THAT(refusal([](Json& json) { json.erase("model"); }), HasSubstr("some/file"));
  EXPECT_THAT(message_of<DataError>([] { tokenizer_from_json("[", "some/file"); }), HasSubstr("some/file"));
}

TEST(TokenizerFile, ReadsThatWholeWordsComeBeforeMerges) {
  // "ab" is a token to which no merge leads; "abc" would be merged as a, bc.
  Json json = Json::parse(to_json(Tokenizer(
      {.tokens = {"a", "b", "c", "bc", "ab", " ab", " "}, .merges = {{1, 2, 3}}, .divides_words = true})));
  EXPECT_FALSE(json["model"].contains("ignore_merges"));
  const Tokenizer merged = tokenizer_from_json(json.dump(), "name");
  EXPECT_THAT(merged.encode("ab ab abc"), ElementsAre(0, 1, 6, 0, 1, 6, 0, 3));
  json["model"]["ignore_merges"] = true;
  const Tokenizer whole = tokenizer_from_json(json.dump(), "name");
  EXPECT_THAT(whole.encode("ab ab abc"), ElementsAre(4, 5, 6, 0, 3));
  EXPECT_NE(whole.identity(), merged.identity());
  EXPECT_EQ(tokenizer_from_json(to_json(whole), "name"), whole);
}

// What a damaged file says is either read or refused, and nothing else happens.
TEST(TokenizerFile, SurvivesDamage) {
  const std::string json = to_json(learned_tokenizer()),
                    merges = "#version: 0.2\n\xc4\xa0 t\nh e\n\xc4\xa0t he\n";
  std::mt19937 random(1);
  for (int round = 0; round < 400; ++round) {
    std::string damaged = round % 2 ? json : merges;
    for (uint32_t i = 0, flips = 1 + random() % 3; i < flips; ++i)
      damaged[random() % damaged.size()] = static_cast<char>(random());
    if (random() % 4 == 0) damaged.resize(random() % damaged.size());
    try {
      const Tokenizer read =
          round % 2 ? tokenizer_from_json(damaged, "name") : tokenizer_from_merges(damaged, "name");
      read.decode(std::array<int32_t, 1>{0});
    } catch (const DataError&) {
    }
  }
}

}  // namespace
}  // namespace lockstep::tokenizer
