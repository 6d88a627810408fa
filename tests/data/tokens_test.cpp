#include "data/tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <numeric>

#include "data/documents.h"
#include "data/read_window.h"
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
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Tokens : public ::testing::Test {
 protected:
  Tokens() {
    options_.kind = DataKind::tokens;
    options_.directory = folder_.path();
    options_.tokens.files = {"a.bin"};
    options_.tokens.context = 3;
  }
  /// Tokens first, first + 1, ... modulo 60000.
  void write(const std::string& name, int64_t first, int64_t count) {
    std::vector<uint16_t> tokens(static_cast<size_t>(count));
    for (auto& token : tokens) token = static_cast<uint16_t>(first++ % 60000);
    write_file(folder_ / name,
               token_header(count, 2) +
                   std::string(reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size()));
  }
  TemporaryDirectory folder_;
  DataOptions options_;
};

TEST_F(Tokens, WindowsFollowEachOtherWithinFiles) {
  write("a.bin", 0, 8);
  write("b.bin", 100, 4);
  write("c.bin", 200, 3);  // too short for a window and its last label
  options_.tokens.files = {"*.bin"};
  const auto data = open_datasets(options_);
  ASSERT_EQ(data.train->size(), 3);
  EXPECT_EQ(read_window(*data.train, 0), (Window{{0, 1, 2}, {1, 2, 3}}));
  EXPECT_EQ(read_window(*data.train, 1), (Window{{3, 4, 5}, {4, 5, 6}}));
  EXPECT_EQ(read_window(*data.train, 2), (Window{{100, 101, 102}, {101, 102, 103}}));
  EXPECT_EQ(data.train->vocabulary("tokens"), 203);
  EXPECT_EQ(data.eval, nullptr);
  options_.tokens.stride = 1;
  EXPECT_EQ(open_datasets(options_).train->size(), 5 + 1);
}

TEST_F(Tokens, FilesEvaluateEachTokenButTheirFirstOnce) {
  write("a.bin", 0, 8);
  write("v1.bin", 10, 5);
  write("v2.bin", 20, 4);
  options_.tokens.files = {"*.bin"};
  options_.tokens.eval_files = {"v*.bin"};
  const auto data = open_datasets(options_);
  EXPECT_EQ(data.train->size(), 2) << "what evaluates does not train";
  ASSERT_EQ(data.eval->size(), 3);
  EXPECT_EQ(read_window(*data.eval, 0), (Window{{10, 11, 12}, {11, 12, 13}}));
  EXPECT_EQ(read_window(*data.eval, 1), (Window{{13, 0, 0}, {14, -1, -1}}));
  EXPECT_EQ(read_window(*data.eval, 2), (Window{{20, 21, 22}, {21, 22, 23}}));
  options_.tokens.eval_files.clear();
  write_file(folder_ / "list", "v1.bin\nv2.bin\n");
  options_.tokens.eval_list = "list";
  const auto listed = open_datasets(options_);
  EXPECT_EQ(listed.eval->identity(), data.eval->identity());
  EXPECT_EQ(listed.train->identity(), data.train->identity());
  std::filesystem::remove(folder_ / "a.bin");
  options_.trains = false;
  options_.tokens.files = {"v*.bin"};
  EXPECT_EQ(open_datasets(options_).eval->identity(), data.eval->identity());
}

std::vector<int32_t> documents_of(const Dataset& data, int64_t sample) {
  const auto& fields = data.fields();
  EXPECT_EQ(fields.back(), (Field{"documents", fields.front().spec}));
  std::vector<int32_t> documents(static_cast<size_t>(fields.back().spec.shape.count()), 77);
  std::vector<std::byte*> destinations(fields.size(), nullptr);
  destinations.back() = reinterpret_cast<std::byte*>(documents.data());
  data.read(sample, destinations);
  return documents;
}

TEST_F(Tokens, SayWhichDocumentTheyBelongTo) {
  write("a.bin", 0, 12);
  write("v.bin", 2, 6);
  options_.tokens.context = 4;
  options_.tokens.eval_files = {"v.bin"};
  const auto plain = open_datasets(options_);
  EXPECT_EQ(plain.train->fields().size(), 2u);
  options_.documents = {.are_read = true, .end_of_text = 5};
  const auto data = open_datasets(options_);
  EXPECT_EQ(documents_of(*data.train, 0), (std::vector<int32_t>{0, 0, 0, 0}));
  EXPECT_EQ(documents_of(*data.train, 1), (std::vector<int32_t>{0, 1, 1, 1})) << "tokens 4 to 7";
  EXPECT_EQ(documents_of(*data.eval, 0), (std::vector<int32_t>{0, 0, 0, 1})) << "tokens 2 to 5";
  EXPECT_EQ(documents_of(*data.eval, 1), (std::vector<int32_t>{0, -1, -1, -1}))
      << "token 6, which predicts 7";
  // The other fields are read as before, and what a document is decides what is trained on.
  std::vector<int32_t> tokens(4), labels(4), documents(4);
  std::byte* const all[] = {reinterpret_cast<std::byte*>(tokens.data()),
                            reinterpret_cast<std::byte*>(labels.data()),
                            reinterpret_cast<std::byte*>(documents.data())};
  data.train->read(1, all);
  EXPECT_EQ((Window{tokens, labels}), read_window(*plain.train, 1));
  EXPECT_EQ(documents, documents_of(*data.train, 1));
  EXPECT_NE(data.train->identity(), plain.train->identity());
  options_.documents.end_of_text = 6;
  EXPECT_NE(open_datasets(options_).train->identity(), data.train->identity());
}

TEST_F(Tokens, DocumentsBeginWithTheTokenizersEndOfText) {
  write("a.bin", 0, 12);
  options_.documents.are_read = true;
  EXPECT_THAT(message_of<ConfigError>([&] { open_datasets(options_); }),
              HasSubstr("data.tokens.end_of_text"));
  options_.documents.end_of_text = 12;
  EXPECT_THAT(message_of<ConfigError>([&] { open_datasets(options_); }),
              AllOf(HasSubstr("data.tokens.end_of_text"), HasSubstr("12")));
  options_.documents.end_of_text = -1;
  std::vector<std::string> names;
  for (char c = 'a'; c < 'a' + 12; ++c) names.emplace_back(1, c);
  names[4] = tokenizer::kEndOfText;
  write_file(folder_ / "tokenizer.json",
             tokenizer::to_json(tokenizer::Tokenizer({.tokens = names, .special = {4}})));
  EXPECT_EQ(documents_of(*open_datasets(options_).train, 1), (std::vector<int32_t>{0, 1, 1}));
}

TEST_F(Tokens, OfEvaluationAloneMayBeOneDocument) {
  write("a.bin", 0, 12);
  write("v.bin", 2, 6);
  options_.tokens.context = 4;
  options_.tokens.eval_files = {"v.bin"};
  options_.documents = {.are_read = true, .end_of_text = 20};
  EXPECT_THAT(message_of<ConfigError>([&] { open_datasets(options_); }), HasSubstr("20"));
  options_.trains = false;
  EXPECT_EQ(documents_of(*open_datasets(options_).eval, 0), (std::vector<int32_t>{0, 0, 0, 0}));
  // A vocabulary that is stated is that of all files.
  options_.tokens.vocabulary = 15;
  EXPECT_THAT(message_of<ConfigError>([&] { open_datasets(options_); }),
              AllOf(HasSubstr("data.tokens.end_of_text"), HasSubstr("15")));
}

TEST(BeginOfDocuments, IsWhatIsStatedOrTheTokenizers) {
  const tokenizer::Tokenizer marked({.tokens = {"a", std::string(tokenizer::kEndOfText)}, .special = {1}});
  const auto characters = tokenizer::Tokenizer::of_characters("ab\n");
  DataOptions options;
  options.kind = DataKind::tokens;
  EXPECT_EQ(begin_of_documents(options, &marked), 1);
  EXPECT_EQ(begin_of_documents(options, &characters), std::nullopt);
  EXPECT_EQ(begin_of_documents(options, nullptr), std::nullopt);
  options.documents.end_of_text = 0;
  EXPECT_EQ(begin_of_documents(options, &marked), 0);
  EXPECT_EQ(begin_of_documents(options, nullptr), 0);
  options.kind = DataKind::text;
  EXPECT_EQ(begin_of_documents(options, &characters), std::nullopt) << "a text is one document";
  options.documents.end_of_text_character = "b";
  EXPECT_EQ(begin_of_documents(options, &characters), 2);
  options.documents.end_of_text_character = "c";
  EXPECT_EQ(begin_of_documents(options, &characters), std::nullopt);
  options.kind = DataKind::synthetic;
  EXPECT_EQ(begin_of_documents(options, nullptr), 0);
  options.kind = DataKind::own;
  EXPECT_EQ(begin_of_documents(options, &marked), std::nullopt);
}

// Each token but the first of all is predicted once, in training or in evaluation.
TEST_F(Tokens, AreEvaluatedWithoutTheFilesThatTrain) {
  write("v.bin", 10, 5);
  options_.tokens.files = {"gone_*.bin"};
  options_.tokens.eval_files = {"v.bin"};
  EXPECT_THAT(message_of<IoError>([&] { open_datasets(options_); }), HasSubstr("gone_*.bin"));
  options_.trains = false;
  const auto data = open_datasets(options_);
  EXPECT_EQ(data.train, nullptr);
  EXPECT_EQ(data.eval->size(), 2);
}

TEST_F(Tokens, ADrawnSplitLeavesNothingOutAndSharesNothing) {
  constexpr int64_t kCount = 48 * 40;
  write("a.bin", 0, kCount);
  options_.tokens.eval_fraction = 0.25;
  options_.tokens.stride = 1;
  const auto data = open_datasets(options_);
  std::map<int32_t, int> trained, evaluated;
  for (int64_t i = 0; i < data.train->size(); ++i)
    for (const int32_t label : read_window(*data.train, i).labels) ++trained[label];
  for (int64_t i = 0; i < data.eval->size(); ++i)
    for (const int32_t label : read_window(*data.eval, i).labels)
      if (label >= 0) ++evaluated[label];
  EXPECT_EQ(evaluated.size(), 10u * 48 - (evaluated.contains(kCount - 1) ? 1 : 0))
      << "a quarter of 40 blocks";
  EXPECT_EQ(trained.size() + evaluated.size(), size_t{kCount - 1});
  for (const auto& [label, times] : evaluated) {
    EXPECT_EQ(times, 1) << label;
    EXPECT_FALSE(trained.contains(label)) << label;
  }
}

TEST_F(Tokens, ADrawnSplitDoesNotDependOnTheOrderOfFiles) {
  write("a.bin", 0, 48 * 20);
  write("b.bin", 5000, 48 * 20);
  options_.tokens.eval_fraction = 0.2;
  const auto labels = [&] {
    std::vector<int32_t> all;
    const auto data = open_datasets(options_);
    for (int64_t i = 0; i < data.eval->size(); ++i)
      for (const int32_t label : read_window(*data.eval, i).labels) all.push_back(label);
    std::ranges::sort(all);
    return all;
  };
  options_.tokens.files = {"a.bin", "b.bin"};
  const auto forward = labels();
  options_.tokens.files = {"b.bin", "a.bin"};
  EXPECT_EQ(labels(), forward);
  options_.tokens.split_seed = 2;
  EXPECT_NE(labels(), forward);
}

TEST_F(Tokens, HaveTheTokenizerThatLiesBesideThem) {
  write("a.bin", 0, 20);
  const std::string json =
      tokenizer::to_json(tokenizer::Tokenizer::of_characters("abcdefghijklmnopqrstuvwx"));
  write_file(folder_ / "tokenizer.json", json);
  const auto data = open_datasets(options_);
  EXPECT_THAT(data.train->encodings(), ElementsAre(std::pair("tokenizer.json", json)));
  EXPECT_EQ(data.train->vocabulary("tokens"), 24);
  write_file(folder_ / "small.json", tokenizer::to_json(tokenizer::Tokenizer::of_characters("abc")));
  options_.tokens.tokenizer = "small.json";
  EXPECT_THAT(message_of<DataError>([&] { open_datasets(options_); }),
              Mentions("a.bin ... token 3 ... byte 1030"));
  options_.tokens.vocabulary = 30;
  EXPECT_EQ(open_datasets(options_).train->vocabulary("tokens"), 30) << "larger, for the sake of alignment";
}

TEST_F(Tokens, RefuseWhatGivesNoSample) {
  write("a.bin", 0, 3);
  EXPECT_THAT(message_of<DataError>([&] { open_datasets(options_); }), Mentions("4 tokens ... a.bin"));
  write("a.bin", 0, 40);
  options_.tokens.eval_fraction = 0.1;
  EXPECT_THAT(message_of<DataError>([&] { open_datasets(options_); }),
              AllOf(HasSubstr("evaluate"), HasSubstr("no file")));
  options_.tokens.context = 0;
  EXPECT_THROW(open_datasets(options_), ConfigError);
}

// A window's last token is predicted in it, and begins the next one: both hold it.
TEST_F(Tokens, SamplesThatHoldATokenBeyondTheVocabularyAreLeftOut) {
  write_file(
      folder_ / "a.bin", token_header(14, 2) + [] {
        std::string bytes;
        for (const uint16_t token : {0, 1, 2, 3, 4, 5, 99, 7, 8, 9, 10, 99, 12, 13})
          bytes += std::string{static_cast<char>(token), '\0'};
        return bytes;
      }());
  options_.tokens.vocabulary = 50;
  EXPECT_THAT(message_of<DataError>([&] { open_datasets(options_); }), Mentions("token 6 ... byte 1036"));
  options_.on_damage = DamagePolicy::skip;
  const auto data = open_datasets(options_);
  // Windows begin at 0, 3, 6 and 9.
  ASSERT_EQ(data.train->size(), 1);
  EXPECT_EQ(data.train->damage().left_out, 3);
  EXPECT_EQ(read_window(*data.train, 0), (Window{{0, 1, 2}, {1, 2, 3}}));
  options_.tokens.vocabulary = 100;
  const auto whole = open_datasets(options_);
  EXPECT_EQ(whole.train->size(), 4);
  EXPECT_EQ(whole.train->damage().left_out, 0);
  EXPECT_NE(whole.train->identity(), data.train->identity());
  options_.tokens.vocabulary = 50;
  options_.tokens.stride = 1;
  const auto dense = open_datasets(options_);
  // 11 windows; those that begin at 3 to 6 and at 8 to 10 hold one.
  ASSERT_EQ(dense.train->size(), 4);
  EXPECT_EQ(dense.train->damage().left_out, 7);
  EXPECT_EQ(read_window(*dense.train, 2), (Window{{2, 3, 4}, {3, 4, 5}}));
  EXPECT_EQ(read_window(*dense.train, 3), (Window{{7, 8, 9}, {8, 9, 10}}));
  options_.tokens.vocabulary = 1;
  EXPECT_THAT(message_of<DataError>([&] { open_datasets(options_); }), HasSubstr("a.bin"));
}

TEST_F(Tokens, LeaveOutTheSameSamplesAsALookAtEachWindow) {
  std::string bytes;
  for (int i = 0; i < 400; ++i)
    bytes += std::string{static_cast<char>(i * i * 7 % 31 == 4 ? 60 : i % 50), '\0'};
  write_file(folder_ / "a.bin", token_header(400, 2) + bytes);
  write_file(folder_ / "b.bin",
             token_header(400, 2) + std::string(bytes.rbegin(), bytes.rend()).substr(1) + '\0');
  options_.tokens.files = {"a.bin", "b.bin"};
  options_.tokens.eval_files = {"b.bin"};
  for (const int64_t stride : {1, 2, 3, 5}) {
    options_.tokens.stride = stride;
    options_.on_damage = DamagePolicy::fail;
    options_.tokens.vocabulary = 100;
    const auto all = open_datasets(options_);
    options_.on_damage = DamagePolicy::skip;
    options_.tokens.vocabulary = 50;
    const auto rest = open_datasets(options_);
    for (const auto& [whole, left] : {std::pair(all.train, rest.train), std::pair(all.eval, rest.eval)}) {
      int64_t sample = 0;
      for (int64_t i = 0; i < whole->size(); ++i) {
        const Window window = read_window(*whole, i);
        if (std::ranges::max(window.tokens) >= 50 || std::ranges::max(window.labels) >= 50) continue;
        ASSERT_LT(sample, left->size());
        EXPECT_EQ(read_window(*left, sample++), window) << stride << " " << i;
      }
      EXPECT_EQ(sample, left->size());
      EXPECT_GT(left->damage().left_out, 0);
      EXPECT_EQ(left->damage().left_out, whole->size() - left->size());
    }
  }
}

TEST_F(Tokens, IdentityIsOfContentAndSelection) {
  write("a.bin", 0, 40);
  const auto identity = [&] { return open_datasets(options_).train->identity(); };
  const auto base = identity();
  std::filesystem::rename(folder_ / "a.bin", folder_ / "b.bin");
  options_.tokens.files = {"b.bin"};
  EXPECT_EQ(identity(), base);
  options_.tokens.stride = 2;
  EXPECT_NE(identity(), base);
  options_.tokens.stride = 0;
  write("b.bin", 1, 40);
  EXPECT_NE(identity(), base);
}

}  // namespace
}  // namespace lockstep::data
