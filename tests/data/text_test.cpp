#include "data/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/read_window.h"
#include "data/test_files.h"
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

std::string tokens_of(const std::string& characters) {
  return tokenizer::to_json(tokenizer::Tokenizer::of_characters(characters));
}

class Text : public ::testing::Test {
 protected:
  DataOptions options_for(const std::string& text, int64_t context, double train_fraction) {
    write_file(folder_ / "text", text);
    DataOptions options;
    options.kind = DataKind::text;
    options.directory = folder_.path();
    options.text_file = "text";
    options.context = context;
    options.train_fraction = train_fraction;
    return options;
  }
  TemporaryDirectory folder_;
};

TEST_F(Text, NamesCharactersThatAreNew) {
  EXPECT_EQ(describe_new("abz", "\t#ab"), "new are 0x09, '#'");
  EXPECT_EQ(describe_new("ab", "abcdefghijkl"), "new are 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j' and 2 more");
}

// "abcdefghij" with a fraction of 0.6: "abcdef" trains, "ghij" evaluates.
TEST_F(Text, TrainsOnEveryWindowOfTheFirstPart) {
  const auto data = open_datasets(options_for("abcdefghij", 3, 0.6));
  ASSERT_EQ(data.train->size(), 3);
  EXPECT_EQ(data.train->classes(), 10);
  EXPECT_EQ(data.train->fields(),
            (std::vector<Field>{{"tokens", {Shape{3}, DType::int32}}, {"label", {Shape{3}, DType::int32}}}));
  EXPECT_EQ(read_window(*data.train, 0), (Window{{0, 1, 2}, {1, 2, 3}}));
  EXPECT_EQ(read_window(*data.train, 2), (Window{{2, 3, 4}, {3, 4, 5}}));
}

TEST_F(Text, IsOneDocumentUnlessACharacterBeginsOthers) {
  const auto documents_of = [](const Dataset& data, int64_t sample) {
    std::vector<int32_t> documents(static_cast<size_t>(data.fields().at(2).spec.shape.count()), 77);
    std::byte* const destinations[] = {nullptr, nullptr, reinterpret_cast<std::byte*>(documents.data())};
    data.read(sample, destinations);
    return documents;
  };
  DataOptions options = options_for("ab.cd.efghi.j", 4, 0.7);
  options.documents.are_read = true;
  EXPECT_EQ(documents_of(*open_datasets(options).train, 1), (std::vector<int32_t>{0, 0, 0, 0}));
  options.documents.end_of_text_character = ".";
  const auto data = open_datasets(options);
  EXPECT_EQ(documents_of(*data.train, 1), (std::vector<int32_t>{0, 1, 1, 1})) << "b.cd";
  EXPECT_EQ(documents_of(*data.train, 2), (std::vector<int32_t>{1, 1, 1, 2})) << ".cd.";
  EXPECT_EQ(documents_of(*data.eval, 0), (std::vector<int32_t>{0, 0, 1, -1})) << "hi., which predict i.j";
  for (const char* wrong : {"?", ".."}) {
    options.documents.end_of_text_character = wrong;
    EXPECT_THAT(message_of<ConfigError>([&] { open_datasets(options); }), HasSubstr("data.text.end_of_text"));
  }
}

TEST_F(Text, EvaluatesEachTokenButTheFirstOnce) {
  const auto data = open_datasets(options_for("abcdefghij", 2, 0.6));
  ASSERT_EQ(data.eval->size(), 2);
  EXPECT_EQ(read_window(*data.eval, 0), (Window{{6, 7}, {7, 8}}));
  EXPECT_EQ(read_window(*data.eval, 1), (Window{{8, 0}, {9, -1}}));
}

TEST_F(Text, EvaluationWithoutRemainderHasNoPadding) {
  const auto data = open_datasets(options_for("abcdefghij", 3, 0.6));
  ASSERT_EQ(data.eval->size(), 1);
  EXPECT_EQ(read_window(*data.eval, 0), (Window{{6, 7, 8}, {7, 8, 9}}));
}

TEST_F(Text, EvaluationShorterThanOneWindowIsPadded) {
  const auto data = open_datasets(options_for("abcdefghij", 5, 0.8));
  ASSERT_EQ(data.eval->size(), 1);
  EXPECT_EQ(read_window(*data.eval, 0), (Window{{8, 0, 0, 0, 0}, {9, -1, -1, -1, -1}}));
}

TEST_F(Text, SkipsNullDestinations) {
  const auto data = open_datasets(options_for("abcdefghij", 2, 0.6));
  int32_t labels[2] = {};
  std::byte* const destinations[] = {nullptr, reinterpret_cast<std::byte*>(labels)};
  data.train->read(1, destinations);
  EXPECT_THAT(labels, ElementsAre(2, 3));
}

TEST_F(Text, MayTrainOnAllOfIt) {
  const auto data = open_datasets(options_for("abcdefghij", 2, 1));
  EXPECT_EQ(data.train->size(), 8);
  EXPECT_EQ(data.eval, nullptr);
}

TEST_F(Text, IsEvaluatedWithTheTokensOfAModel) {
  DataOptions options = options_for("dead", 2, 0);
  options.trains = false;
  options.encodings = {{"tokenizer.json", tokens_of("abcde")}};
  const auto data = open_datasets(options);
  EXPECT_EQ(data.train, nullptr);
  EXPECT_EQ(data.eval->classes(), 5);
  EXPECT_EQ(data.eval->encodings(), options.encodings);
  EXPECT_EQ(read_window(*data.eval, 0), (Window{{3, 4}, {4, 0}}));
  options.encodings = {{"tokenizer.json", tokens_of("abde")}};
  EXPECT_EQ(read_window(*open_datasets(options).eval, 0), (Window{{2, 3}, {3, 0}}));
  options.encodings = {{"tokenizer.json", tokens_of("abcd")}};
  EXPECT_THAT(message_of<DataError>([&] { open_datasets(options); }),
              AllOf(HasSubstr("the model's 4 tokens"), HasSubstr("new are 'e'")));
  DataOptions half = options_for("##de", 2, 0.5);
  half.trains = false;
  half.encodings = {{"tokenizer.json", tokens_of("abcde")}};
  EXPECT_EQ(read_window(*open_datasets(half).eval, 0), (Window{{3, 0}, {4, -1}}))
      << "what trained is not looked at";
}

TEST_F(Text, RefusesWhatGivesNoSample) {
  EXPECT_THAT(message_of<DataError>([&] { open_datasets(options_for("", 2, 0.5)); }), HasSubstr("empty"));
  EXPECT_THAT(message_of<DataError>([&] { open_datasets(options_for("abcdef", 3, 0.5)); }),
              Mentions("3 characters ... 3 ... 3"));
  EXPECT_THAT(message_of<DataError>([&] { open_datasets(options_for("abcdefghij", 2, 0.95)); }),
              Mentions("found 1 ... first 9"));
  EXPECT_THAT(message_of<DataError>([&] { open_datasets(options_for("abcdef", 2, 0)); }),
              Mentions("2 characters ... 2 ... 0"));
  for (const double fraction : {-0.5, 2.0})
    EXPECT_THROW(open_datasets(options_for("abcdef", 2, fraction)), ConfigError);
  EXPECT_THROW(open_datasets(options_for("abcdef", 0, 0.5)), ConfigError);
}

TEST_F(Text, IdentityIsOfContentAndSelection) {
  const auto identity = [](const DataOptions& options) { return open_datasets(options).train->identity(); };
  const auto base = identity(options_for("abcdefghij", 2, 0.6));
  EXPECT_EQ(identity(options_for("abcdefghij", 2, 0.6)), base);
  EXPECT_NE(identity(options_for("abcdefghij", 3, 0.6)), base);
  EXPECT_NE(identity(options_for("abcdefghij", 2, 0.7)), base);
  EXPECT_NE(identity(options_for("abcdeghijj", 2, 0.6)), base);
  // The same tokens of other characters are other data.
  EXPECT_NE(identity(options_for("klmnopqrst", 2, 0.6)), base);
}

}  // namespace
}  // namespace lockstep::data
