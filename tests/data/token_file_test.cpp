#include "data/token_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "data/test_files.h"
#include "lockstep/error.h"
#include "mentions.h"

namespace lockstep::data {
namespace {

using test::message_of;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

template <class Token>
std::string bytes_of(const std::vector<Token>& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(Token)};
}

class TokenFiles : public ::testing::Test {
 protected:
  std::vector<int32_t> read(const TokenFile& file, int64_t begin, size_t count) {
    std::vector<int32_t> tokens(count, 77);
    file.read(begin, tokens);
    return tokens;
  }
  std::string refusal(const std::string& bytes, TokenFormat format, int64_t vocabulary = 0) {
    write_file(folder_ / "file", bytes);
    return message_of<DataError>([&] { TokenFile(folder_ / "file", format, vocabulary); });
  }
  TemporaryDirectory folder_;
};

TEST_F(TokenFiles, AreReadByTheirHeader) {
  write_file(folder_ / "narrow", token_header(3, 2) + bytes_of<uint16_t>({7, 65535, 9}));
  const TokenFile narrow(folder_ / "narrow", TokenFormat::automatic, 0);
  EXPECT_EQ(narrow.count(), 3);
  EXPECT_EQ(narrow.largest(), 65535);
  EXPECT_THAT(read(narrow, 0, 3), ElementsAre(7, 65535, 9));
  EXPECT_THAT(read(narrow, 1, 1), ElementsAre(65535));
  write_file(folder_ / "wide", token_header(2, 4) + bytes_of<uint32_t>({7, 70000}));
  const TokenFile wide(folder_ / "wide", TokenFormat::llmc, 70001);
  EXPECT_THAT(read(wide, 0, 2), ElementsAre(7, 70000));
  EXPECT_NE(narrow.identity(), wide.identity());
}

TEST_F(TokenFiles, KnowHowWideTokensWithoutAHeaderAre) {
  std::vector<uint32_t> wide;
  std::vector<uint16_t> narrow;
  for (uint32_t i = 0; i < 200; ++i) {
    wide.push_back(i * 2654435761U % 50257);
    narrow.push_back(static_cast<uint16_t>(i * 2654435761U % 50257));
  }
  write_file(folder_ / "wide", bytes_of(wide));
  write_file(folder_ / "narrow", bytes_of(narrow));
  EXPECT_EQ(TokenFile(folder_ / "wide", TokenFormat::automatic, 50257).count(), 200);
  EXPECT_EQ(TokenFile(folder_ / "wide", TokenFormat::uint16, 0).count(), 400);
  EXPECT_EQ(TokenFile(folder_ / "narrow", TokenFormat::automatic, 50257).count(), 200);
  for (auto& token : wide) token = token * 2 % 100277;  // upper halves of 0 and 1
  EXPECT_THAT(refusal(bytes_of(wide), TokenFormat::automatic), Mentions("UINT16 ... UINT32"));
  EXPECT_EQ(TokenFile(folder_ / "file", TokenFormat::uint32, 100277).count(), 200);
}

TEST_F(TokenFiles, AreReadWithoutAHeader) {
  write_file(folder_ / "file", bytes_of<uint16_t>({1, 0, 2, 0}));
  const TokenFile narrow(folder_ / "file", TokenFormat::automatic, 0),
      wide(folder_ / "file", TokenFormat::uint32, 0);
  EXPECT_THAT(read(narrow, 0, 4), ElementsAre(1, 0, 2, 0));
  EXPECT_THAT(read(wide, 0, 2), ElementsAre(1, 2));
  write_file(folder_ / "empty", "");
  EXPECT_EQ(TokenFile(folder_ / "empty", TokenFormat::automatic, 0).count(), 0);
}

TEST_F(TokenFiles, HaveTheHeaderOfOtherPrograms) {
  const std::string header = token_header(5, 2);
  ASSERT_EQ(header.size(), 1024u);
  int32_t words[3];
  std::memcpy(words, header.data(), sizeof words);
  EXPECT_THAT(words, ElementsAre(20240520, 1, 5));
  std::memcpy(words, token_header(5, 4).data(), sizeof words);
  EXPECT_THAT(words, ElementsAre(20240801, 7, 5));
}

TEST_F(TokenFiles, NameWhatIsDamaged) {
  EXPECT_THAT(refusal(bytes_of<uint16_t>({1, 2, 3, 100, 4}), TokenFormat::uint16, 100),
              Mentions("token 3 ... byte 6 ... 100"));
  EXPECT_THAT(refusal(token_header(2, 2) + bytes_of<uint16_t>({1, 9}), TokenFormat::automatic, 9),
              Mentions("token 1 ... byte 1026 ... 9"));
  EXPECT_THAT(refusal(bytes_of<uint32_t>({1, 0x80000000}), TokenFormat::uint32),
              Mentions("token 1 ... byte 4"));
  EXPECT_THAT(refusal("abc", TokenFormat::automatic), Mentions("3 bytes ... 1 after byte 2"));
  EXPECT_THAT(refusal("abcdef", TokenFormat::uint32), Mentions("6 bytes ... 2 after byte 4"));
  EXPECT_THAT(refusal(token_header(3, 2) + "ab", TokenFormat::automatic), Mentions("3 tokens ... 1026"));
  EXPECT_THAT(refusal(token_header(-1, 2), TokenFormat::automatic), Mentions("-1 tokens"));
  EXPECT_THAT(refusal("abcd", TokenFormat::llmc), Mentions("20240520 ... byte 0"));
  EXPECT_THAT(refusal(bytes_of<int32_t>({20240520, 2, 0}), TokenFormat::automatic),
              Mentions("version 1 ... 2"));
  EXPECT_THAT(refusal(bytes_of<int32_t>({20240522, 1, 0}), TokenFormat::automatic), HasSubstr("questions"));
  // Without a wait for the end of a large file, unless damage is looked for.
  std::vector<uint16_t> many(1 << 19, 100);
  many[7] = 99;
  EXPECT_THAT(refusal(bytes_of<uint16_t>(many), TokenFormat::uint16, 100), Not(HasSubstr("others")));
  EXPECT_THAT(message_of<DataError>(
                  [&] { TokenFile(folder_ / "file", TokenFormat::uint16, 100, BeyondVocabulary::count); }),
              Mentions(fmt::format("token 0 ... {} others", many.size() - 2)));
  many.assign({1, 100});
  write_file(folder_ / "file", bytes_of<uint16_t>(many));
  EXPECT_THAT(message_of<DataError>(
                  [&] { TokenFile(folder_ / "file", TokenFormat::uint16, 100, BeyondVocabulary::count); }),
              Not(HasSubstr("others")));
  EXPECT_THROW(TokenFile(folder_ / "none", TokenFormat::automatic, 0), IoError);
  EXPECT_THROW(TokenFile(folder_.path(), TokenFormat::automatic, 0), IoError);
  EXPECT_THAT(message_of<DataError>([&] { TokenFile(folder_ / "a.gz", TokenFormat::automatic, 0); }),
              HasSubstr("gunzip"));
}

TEST_F(TokenFiles, ListTokensBeyondTheVocabulary) {
  std::vector<uint16_t> many((1 << 18) + 5, 7);
  many[0] = 100;
  many[3] = 65535;
  many[(1 << 18) + 1] = 101;
  write_file(folder_ / "file", bytes_of<uint16_t>(many));
  const TokenFile file(folder_ / "file", TokenFormat::uint16, 100, BeyondVocabulary::list);
  EXPECT_THAT(file.damaged(), ::testing::ElementsAre(0, 3, (1 << 18) + 1));
  EXPECT_EQ(file.largest(), 7);
  EXPECT_EQ(file.byte_of(3), 6);
  write_file(folder_ / "file", bytes_of<uint32_t>({1, 1u << 31, 5}));
  const TokenFile wide(folder_ / "file", TokenFormat::uint32, 0, BeyondVocabulary::list);
  EXPECT_THAT(wide.damaged(), ::testing::ElementsAre(1));
  EXPECT_EQ(wide.largest(), 5);
  // Another vocabulary is no damage.
  many.assign((1 << 20) + 1, 100);
  write_file(folder_ / "file", bytes_of<uint16_t>(many));
  EXPECT_THAT(message_of<DataError>(
                  [&] { TokenFile(folder_ / "file", TokenFormat::uint16, 100, BeyondVocabulary::list); }),
              Mentions("1048576 tokens ... byte 0"));
}

TEST_F(TokenFiles, NoticeChangesWhileTheyAreRead) {
  const std::string path = folder_ / "file";
  write_file(path, bytes_of<uint16_t>({1, 2, 3, 4}));
  const TokenFile file(path, TokenFormat::uint16, 0);
  std::filesystem::resize_file(path, 4);
  EXPECT_THAT(message_of<DataError>([&] { read(file, 1, 3); }), Mentions("file ... byte 4"));
  EXPECT_THAT(message_of<DataError>([&] { read(file, 0, 1); }), HasSubstr("changed"));
  const TokenFile again(path, TokenFormat::uint16, 0);
  std::filesystem::rename(path, folder_ / "elsewhere");
  write_file(path, bytes_of<uint16_t>({5, 6}));
  EXPECT_THAT(read(again, 0, 2), ElementsAre(1, 2))
      << "a file that takes the name of another changes nothing";
}

TEST_F(TokenFiles, HeadersSurviveDamage) {
  std::mt19937 random(2);
  const std::string whole = token_header(8, 2) + std::string(16, 'x');
  for (int round = 0; round < 2000; ++round) {
    std::string damaged = whole;
    for (int flip = 0; flip < 3; ++flip) damaged[random() % 12] = static_cast<char>(random());
    damaged.resize(random() % (whole.size() + 1));
    try {
      const auto layout =
          token_layout_of(std::string_view(damaged).substr(0, 1024), static_cast<int64_t>(damaged.size()),
                          TokenFormat::automatic, "name");
      EXPECT_EQ(layout.header_bytes + layout.count * layout.token_bytes,
                static_cast<int64_t>(damaged.size()));
    } catch (const DataError&) {
    }
  }
}

}  // namespace
}  // namespace lockstep::data
