#include "data/token_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "data/dataset.h"
#include "data/test_files.h"
#include "data/token_file.h"
#include "lockstep/error.h"
#include "mentions.h"
#include "tokenizer/tokenizer_file.h"

namespace lockstep::data {
namespace {

using test::message_of;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::HasSubstr;

class TokenWriter : public ::testing::Test {
 protected:
  TokenWriter() {
    write_file(folder_ / "one", std::string("the cat sat on the mat\nthe cat\n"));
    write_file(folder_ / "two", std::string("the hat \xff\n"));
    options_.texts = {folder_ / "one", folder_ / "two"};
    options_.directory = folder_ / "out";
    options_.vocabulary = 270;
  }
  std::vector<int32_t> all_tokens(int64_t files) {
    std::vector<int32_t> all;
    for (int64_t i = 0; i < files; ++i) {
      const TokenFile file(folder_ / fmt::format("out/tokens_{:06}.bin", i), TokenFormat::llmc, 0);
      std::vector<int32_t> some(static_cast<size_t>(file.count()));
      file.read(0, some);
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }
  TemporaryDirectory folder_;
  TokenizeOptions options_;
};

TEST_F(TokenWriter, WritesTokensThatDecodeToTheTexts) {
  const TokenizeResult result = tokenize(options_);
  EXPECT_EQ(result.files, 1);
  EXPECT_EQ(result.token_bytes, 2);
  const auto tokenizer = tokenizer::read_tokenizer(folder_ / "out/tokenizer.json");
  EXPECT_EQ(tokenizer.size(), result.vocabulary);
  const auto tokens = all_tokens(1);
  EXPECT_EQ(static_cast<int64_t>(tokens.size()), result.tokens);
  EXPECT_EQ(tokenizer.decode(tokens),
            "<|endoftext|>the cat sat on the mat\nthe cat\n<|endoftext|>the hat \xff\n");
}

TEST_F(TokenWriter, DividesTokensAmongFiles) {
  tokenize(options_);
  const auto whole = all_tokens(1);
  options_.overwrite = true;
  options_.shard_tokens = 5;
  const TokenizeResult result = tokenize(options_);
  EXPECT_EQ(result.files, (static_cast<int64_t>(whole.size()) + 4) / 5);
  EXPECT_EQ(all_tokens(result.files), whole);
}

TEST_F(TokenWriter, ReadsLongTextsInPieces) {
  std::string text;
  while (text.size() < (9u << 20)) text += fmt::format("the cat {} sat\n on", text.size() % 1000);
  write_file(folder_ / "long", text);
  options_.texts = {folder_ / "long"};
  const TokenizeResult result = tokenize(options_);
  const auto tokenizer = tokenizer::read_tokenizer(folder_ / "out/tokenizer.json");
  auto expected = tokenizer.encode(text);
  expected.insert(expected.begin(), *tokenizer.end_of_text());
  EXPECT_EQ(all_tokens(result.files), expected);
}

TEST_F(TokenWriter, TakesATokenizerThatIsThere) {
  write_file(folder_ / "merges", std::string("t h\nth e\n"));
  options_.tokenizer = folder_ / "merges";
  options_.marks_documents = false;
  const TokenizeResult result = tokenize(options_);
  EXPECT_EQ(result.vocabulary, 259);
  EXPECT_EQ(all_tokens(1)[0], 257) << "the";
  write_file(folder_ / "letters", tokenizer::to_json(tokenizer::Tokenizer::of_characters("abc")));
  options_.tokenizer = folder_ / "letters";
  options_.overwrite = true;
  EXPECT_THAT(message_of<DataError>([&] { tokenize(options_); }), Mentions("one ... 0x74 at position 0"));
}

TEST_F(TokenWriter, KeepsWhatIsThere) {
  tokenize(options_);
  EXPECT_THAT(message_of<ConfigError>([&] { tokenize(options_); }), HasSubstr("--force"));
  options_.overwrite = true;
  tokenize(options_);
  write_file(folder_ / "two", std::string());
  EXPECT_THAT(message_of<DataError>([&] { tokenize(options_); }), Mentions("two ... empty"));
}

TEST_F(TokenWriter, ReplacesTokensWhenNewOnesAreComplete) {
  const TokenizeResult first = tokenize(options_);
  const auto tokens = all_tokens(first.files);
  options_.overwrite = true;
  options_.tokenizer = folder_ / "out/tokenizer.json";
  options_.texts.push_back(folder_ / "missing");
  EXPECT_THAT(message_of<IoError>([&] { tokenize(options_); }), HasSubstr("missing"));
  EXPECT_EQ(all_tokens(first.files), tokens);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/.new_tokens"));
}

}  // namespace
}  // namespace lockstep::data
