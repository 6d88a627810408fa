#include "data/lines/lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "data/test_files.h"
#include "lockstep/error.h"
#include "mentions.h"
#include "tokenizer/tokenizer_file.h"

namespace lockstep::data {
namespace {

using test::message_of;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct LineSample {
  std::vector<int32_t> tokens;
  std::vector<float> mask;
  int32_t label;
};

class Lines : public ::testing::Test {
 protected:
  Lines() {
    options_.kind = DataKind::lines;
    options_.directory = folder_.path();
    options_.lines.files = {"a.tsv"};
    options_.lines.length = 3;
  }
  void write(const std::string& name, const std::string& text) { write_file(folder_ / name, text); }
  static LineSample read(const Dataset& data, int64_t sample) {
    const auto length = static_cast<size_t>(data.fields()[0].spec.shape.count());
    LineSample result{std::vector<int32_t>(length, 77), std::vector<float>(length, 77), 77};
    std::byte* const destinations[] = {reinterpret_cast<std::byte*>(result.tokens.data()),
                                       reinterpret_cast<std::byte*>(result.mask.data()),
                                       reinterpret_cast<std::byte*>(&result.label)};
    data.read(sample, destinations);
    return result;
  }
  std::string refusal() {
    return message_of<DataError>([&] { open_datasets(options_); });
  }
  TemporaryDirectory folder_;
  DataOptions options_;
};

TEST_F(Lines, CutAndPadTexts) {
  write("a.tsv", "spam\tabcde\r\nham\tx\ty\n\nspam\tz");
  const auto data = open_datasets(options_).train;
  ASSERT_EQ(data->size(), 3);
  EXPECT_THAT(data->class_names(), ElementsAre("ham", "spam"));
  EXPECT_EQ(data->classes(), 2);
  EXPECT_EQ(data->vocabulary("tokens"), 256);
  EXPECT_THAT(read(*data, 0).tokens, ElementsAre('a', 'b', 'c'));
  EXPECT_THAT(read(*data, 0).mask, ElementsAre(1, 1, 1));
  EXPECT_EQ(read(*data, 0).label, 1);
  EXPECT_THAT(read(*data, 1).tokens, ElementsAre('x', '\t', 'y'));
  EXPECT_THAT(read(*data, 2).tokens, ElementsAre('z', 0, 0));
  EXPECT_THAT(read(*data, 2).mask, ElementsAre(1, 0, 0));
}

TEST_F(Lines, EvaluateOnAList) {
  write("a.tsv", "x\tone\n\ny\ttwo\n");
  write("b.tsv", "x\tthr\ny\tfou\n");
  write("list", "1\n2\n");
  options_.lines.files = {"a.tsv", "b.tsv"};
  options_.lines.eval_list = "list";
  const auto data = open_datasets(options_);
  ASSERT_EQ(data.train->size(), 2);
  ASSERT_EQ(data.eval->size(), 2);
  EXPECT_THAT(read(*data.train, 1).tokens, ElementsAre('f', 'o', 'u'));
  EXPECT_THAT(read(*data.eval, 0).tokens, ElementsAre('t', 'w', 'o'));
  EXPECT_THAT(read(*data.eval, 1).tokens, ElementsAre('t', 'h', 'r'));
  const uint64_t before = data.eval->identity();
  write("list", "2\n");
  EXPECT_NE(open_datasets(options_).eval->identity(), before);
  write("list", "4\n");
  EXPECT_THAT(refusal(), Mentions("list ... '4'"));
  std::filesystem::create_directories(folder_ / "texts/x");
  std::filesystem::create_directories(folder_ / "texts/y");
  write("texts/x/1", "one");
  write("texts/x/2", "two");
  write("texts/y/1", "thr");
  write("list", "x/2\n");
  options_.lines.files.clear();
  options_.lines.folder = "texts";
  const auto by_folder = open_datasets(options_);
  EXPECT_EQ(by_folder.train->size(), 2);
  ASSERT_EQ(by_folder.eval->size(), 1);
  EXPECT_THAT(read(*by_folder.eval, 0).tokens, ElementsAre('t', 'w', 'o'));
  write("list", "y/2\n");
  EXPECT_THAT(refusal(), Mentions("list ... 'y/2'"));
}

TEST_F(Lines, OfAListAreRefusedUnlessTheyAreThereOrDamaged) {
  write("a.tsv", "x\tone\nbroken\ny\ttwo\n");
  write("list", "0\n1\n");
  options_.lines.eval_list = "list";
  options_.on_damage = DamagePolicy::skip;
  EXPECT_EQ(open_datasets(options_).eval->size(), 1);
  write("list", "0\n3\n");
  EXPECT_THAT(refusal(), Mentions("list ... '3'"));
  std::filesystem::create_directories(folder_ / "texts/x");
  std::filesystem::create_directories(folder_ / "texts/y");
  write("texts/x/1", "one");
  write("texts/x/2", "\xff");
  write("texts/y/1", "two");
  write("list", "x/1\nx/2\n");
  options_.lines.files.clear();
  options_.lines.folder = "texts";
  EXPECT_EQ(open_datasets(options_).eval->size(), 1);
  write("list", "x/1\nx/2.txt\n");
  EXPECT_THAT(refusal(), Mentions("list ... 'x/2.txt'"));
}

TEST_F(Lines, CountWhatIsLeftOutOfBothPartsOnce) {
  write("a.tsv", "x\tone\nbroken\ny\ttwo\nx\tthr\ny\tfou\n");
  options_.on_damage = DamagePolicy::skip;
  options_.lines.eval_fraction = 0.5;
  const auto data = open_datasets(options_);
  EXPECT_EQ(data.train->damage().left_out + data.eval->damage().left_out, 1);
}

TEST_F(Lines, HaveTokensOfATokenizer) {
  write("a.tsv", "spam\tthe hat\n");
  write("merges", "t h\nth e\n");
  options_.lines.tokenizer = "merges";
  const auto data = open_datasets(options_).train;
  EXPECT_EQ(read(*data, 0).tokens[0], 257);
  EXPECT_EQ(data->vocabulary("tokens"), 259);
  EXPECT_TRUE(data->encodings().contains("tokenizer.json"));
}

TEST_F(Lines, AreReadFromFolders) {
  std::filesystem::create_directories(folder_ / "texts/b");
  std::filesystem::create_directories(folder_ / "texts/a");
  write("texts/b/1", "xy");
  write("texts/a/2", "z\n");
  write("texts/a/1", "q");
  options_.lines.files.clear();
  options_.lines.folder = "texts";
  const auto data = open_datasets(options_).train;
  ASSERT_EQ(data->size(), 3);
  EXPECT_THAT(data->class_names(), ElementsAre("a", "b"));
  EXPECT_THAT(read(*data, 1).tokens, ElementsAre('z', '\n', 0));
  EXPECT_EQ(read(*data, 2).label, 1);
  std::filesystem::create_directories(folder_ / "texts/c");
  EXPECT_THAT(refusal(), HasSubstr("texts/c"));
}

TEST_F(Lines, AFolderWithoutTextsEvaluatesNothingAndIsRefused) {
  std::filesystem::create_directories(folder_ / "texts/a");
  std::filesystem::create_directories(folder_ / "none");
  write("texts/a/1", "q");
  options_.lines.files.clear();
  options_.lines.folder = "texts";
  options_.lines.eval_folder = "none";
  EXPECT_THAT(refusal(), HasSubstr("evaluate"));
}

TEST_F(Lines, AByteOrderMarkIsPartOfNoClass) {
  write("a.tsv",
        "\xef\xbb\xbf"
        "a\tx\na\ty\n");
  EXPECT_THAT(open_datasets(options_).train->class_names(), ElementsAre("a"));
}

TEST_F(Lines, ASplitTakesOfEachClass) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += fmt::format("{}\t{}\n", i % 4 == 0 ? "a" : "b", 100 + i);
  write("a.tsv", text);
  options_.lines.eval_fraction = 0.2;
  const auto data = open_datasets(options_);
  EXPECT_EQ(data.train->size(), 32);
  int ones = 0;
  for (int64_t i = 0; i < data.eval->size(); ++i) ones += read(*data.eval, i).label == 0 ? 1 : 0;
  EXPECT_EQ(ones, 2);
}

TEST_F(Lines, AreEvaluatedAsTheModelWasTrained) {
  write("a.tsv", "b\tx\nc\ty\n");
  options_.encodings = open_datasets(options_).train->encodings();
  write("v.tsv", "c\tx\n");
  options_.trains = false;
  options_.lines.eval_files = {"v.tsv"};
  const auto eval = open_datasets(options_).eval;
  EXPECT_EQ(read(*eval, 0).label, 1);
  EXPECT_EQ(eval->encodings(), options_.encodings);
  write("v.tsv", "a\tx\n");
  EXPECT_THAT(refusal(), Mentions("v.tsv ... line 1 ... 'a'"));
}

TEST_F(Lines, AreEvaluatedWithoutTheFilesThatTrain) {
  write("a.tsv", "spam\tabc\nham\tx\n");
  write("v.tsv", "spam\tz\n");
  options_.lines.eval_files = {"v.tsv"};
  options_.encodings = open_datasets(options_).train->encodings();
  options_.trains = false;
  std::filesystem::remove(folder_ / "a.tsv");
  EXPECT_EQ(read(*open_datasets(options_).eval, 0).label, 1);
  std::filesystem::create_directories(folder_ / "eval/spam");
  write("eval/spam/1.txt", "z");
  options_.lines.files.clear();
  options_.lines.eval_files.clear();
  options_.lines.folder = "gone";
  options_.lines.eval_folder = "eval";
  EXPECT_EQ(read(*open_datasets(options_).eval, 0).label, 1);
}

TEST_F(Lines, ThatArePredictedNeedNoClass) {
  write("a.tsv", "spam\tabc\nham\txyz\n");
  options_.encodings = open_datasets(options_).train->encodings();
  options_.trains = false;
  write("new.txt", "abc\nham\tab\n");
  options_.lines.eval_files = {"new.txt"};
  EXPECT_THAT(refusal(), HasSubstr("new.txt"));
  options_.may_lack_truth = true;
  const auto data = open_datasets(options_).eval;
  ASSERT_EQ(data->size(), 2);
  EXPECT_EQ(read(*data, 0).label, -1);
  EXPECT_THAT(read(*data, 0).tokens, ElementsAre('a', 'b', 'c'));
  EXPECT_EQ(read(*data, 1).label, 0);
  std::filesystem::create_directories(folder_ / "texts/spam");
  write("texts/one", "ab");
  write("texts/spam/two", "xyz");
  options_.lines.files = options_.lines.eval_files = {};
  options_.lines.folder = options_.lines.eval_folder = "texts";
  const auto texts = open_datasets(options_).eval;
  EXPECT_EQ(read(*texts, 0).label, -1);
  EXPECT_EQ(read(*texts, 1).label, 1);
}

TEST_F(Lines, NameDamageOrLeaveItOut) {
  const std::pair<std::string, std::string> damages[] = {
      {"no tab\n", "a.tsv ... line 2 ... byte 6 ... no tab"},
      {"\ttext\n", "line 2 ... class ... empty"},
      {"spam\t\n", "line 2 ... text ... empty"},
      {"spam\tx\xff\n", "line 2 ... 0xff at its byte 1"},
  };
  for (const auto& [line, mention] : damages) {
    write("a.tsv", "ham\tx\n" + line);
    options_.on_damage = DamagePolicy::fail;
    EXPECT_THAT(refusal(), Mentions(mention)) << line;
    options_.on_damage = DamagePolicy::skip;
    const auto data = open_datasets(options_).train;
    EXPECT_EQ(data->size(), 1) << line;
    EXPECT_EQ(data->damage().left_out, 1) << line;
  }
  write("a.tsv", "");
  EXPECT_THAT(refusal(), HasSubstr("found none"));
}

}  // namespace
}  // namespace lockstep::data
