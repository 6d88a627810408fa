#include "tokenizer/words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tokenizer/unicode.h"

namespace lockstep::tokenizer {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = word_end(text, begin);
    words.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

TEST(Words, HaveAtMostOneBlankBeforeThem) {
  EXPECT_THAT(words_of("Hello, big  world 42x"),
              ElementsAre("Hello", ",", " big", " ", " world", " 42", "x"));
  EXPECT_THAT(words_of(" "), ElementsAre(" "));
  EXPECT_THAT(words_of(""), ElementsAre());
}

TEST(Words, LeaveTheLastOfSeveralSpacesToWhatFollows) {
  EXPECT_THAT(words_of("a \n\t b"), ElementsAre("a", " \n\t", " b"));
  EXPECT_THAT(words_of("a\n\nb"), ElementsAre("a", "\n", "\n", "b"));
  EXPECT_THAT(words_of("a\nb"), ElementsAre("a", "\n", "b"));
  EXPECT_THAT(words_of("a   "), ElementsAre("a", "   "));
}

TEST(Words, KeepContractionsApart) {
  EXPECT_THAT(words_of("we'll I'm it's 'tis x'RE"),
              ElementsAre("we", "'ll", " I", "'m", " it", "'s", " '", "tis", " x", "'", "RE"));
  EXPECT_THAT(words_of("'"), ElementsAre("'"));
  EXPECT_THAT(words_of("'re"), ElementsAre("'re"));
  EXPECT_THAT(words_of("'r"), ElementsAre("'", "r"));
}

TEST(Words, AreOfEveryScript) {
  EXPECT_THAT(words_of("día ночь夜 ½٣\u3000x"), ElementsAre("día", " ночь夜", " ½٣", "\u3000", "x"));
  EXPECT_THAT(words_of("a\u0301😀 😀b"), ElementsAre("a", "\u0301😀", " 😀", "b"))
      << "a combining accent is no letter";
}

TEST(Words, TakeBrokenUtf8ForNeitherLettersNorSpace) {
  EXPECT_THAT(words_of("a\xff\xc3 \x80z"), ElementsAre("a", "\xff\xc3", " \x80", "z"));
  EXPECT_THAT(words_of("\xed\xa0\x80"), ElementsAre("\xed\xa0\x80")) << "a surrogate";
  EXPECT_THAT(words_of("\xc3"), ElementsAre("\xc3")) << "cut";
}

TEST(Words, BeginAtADivisionWhateverFollows) {
  EXPECT_EQ(last_division("ab cd"), 2u);
  EXPECT_EQ(last_division("ab  "), 2u);
  EXPECT_EQ(last_division("ab"), 0u);
  EXPECT_EQ(last_division("  "), 0u);
  EXPECT_EQ(last_division("夜\n夜"), 3u);
  EXPECT_EQ(last_division("x\u3000\u3000"), 0u) << "of one byte only";
  const std::string text = "one  two\n three'll 4 \xe3\x80\x80 \xc3 five\t\t six";
  for (size_t cut = 1; cut <= text.size(); ++cut) {
    const size_t division = last_division(std::string_view(text).substr(0, cut));
    auto apart = words_of(std::string_view(text).substr(0, division));
    for (auto& word : words_of(std::string_view(text).substr(division))) apart.push_back(std::move(word));
    EXPECT_EQ(apart, words_of(text)) << cut;
  }
}

TEST(Unicode, RefusesWhatIsNotWellFormed) {
  EXPECT_EQ(well_formed_bytes("\xc0\x80", 0), 0) << "overlong";
  EXPECT_EQ(well_formed_bytes("\xe0\x9f\xbf", 0), 0) << "overlong";
  EXPECT_EQ(well_formed_bytes("\xf0\x8f\xbf\xbf", 0), 0) << "overlong";
  EXPECT_EQ(well_formed_bytes("\xf4\x90\x80\x80", 0), 0) << "beyond U+10FFFF";
  EXPECT_EQ(well_formed_bytes("\xf4\x8f\xbf\xbf", 0), 4);
  EXPECT_EQ(well_formed_bytes("\xef\xbf\xbf", 0), 3);
  EXPECT_EQ(well_formed_bytes("\xdf\xbf", 0), 2);
  EXPECT_EQ(well_formed_bytes("\xe2\x82", 0), 0) << "cut";
}

TEST(Unicode, KnowsLettersNumbersAndSpaces) {
  EXPECT_EQ(class_of('a'), CharacterClass::letter);
  EXPECT_EQ(class_of(0x10ffff), CharacterClass::other);
  EXPECT_EQ(class_of(0x0661), CharacterClass::number);
  EXPECT_EQ(class_of(0x85), CharacterClass::space);
  EXPECT_EQ(class_of(0x1c), CharacterClass::other) << "a separator for some, but no white space";
  EXPECT_EQ(class_of(0x200b), CharacterClass::other) << "no width";
}

}  // namespace
}  // namespace lockstep::tokenizer
