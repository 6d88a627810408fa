#include "base/text.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

#include "lockstep/error.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::vector<std::string> kFields = {"learning_rate", "momentum", "seed", "steps", "lr"};

TEST(Nearest, FindsASlip) {
  EXPECT_EQ(nearest("learning_rat", kFields), "learning_rate");   // one letter less
  EXPECT_EQ(nearest("learningrates", kFields), "learning_rate");  // one less, one more
  EXPECT_EQ(nearest("step", kFields), "steps");
  EXPECT_EQ(nearest("lt", kFields), "lr");
  EXPECT_EQ(nearest("momentum", kFields), "momentum");
}

TEST(Nearest, IsEmptyWhereNothingIsNear) {
  EXPECT_EQ(nearest("batch_size", kFields), "");
  EXPECT_EQ(nearest("momtuemn_x", kFields), "");  // five edits in ten letters
  EXPECT_EQ(nearest("x", {"y"}), "");             // the whole word would be the slip
  EXPECT_EQ(nearest("", kFields), "");
  EXPECT_EQ(nearest("seed", {}), "");
}

TEST(Nearest, PrefersTheNearer) { EXPECT_EQ(nearest("stopps", {"stomps", "stopp", "stoops"}), "stomps"); }

TEST(DidYouMean, IsAPhraseOrNothing) {
  EXPECT_EQ(did_you_mean("sed", kFields), " (did you mean 'seed'?)");
  EXPECT_EQ(did_you_mean("batch_size", kFields), "");
}

TEST(Split, TrimsPartsAndKeepsEmptyOnes) {
  EXPECT_THAT(split("dp=2, pp=2 ,sync=ps", ','), ElementsAre("dp=2", "pp=2", "sync=ps"));
  EXPECT_THAT(split("a,,b", ','), ElementsAre("a", "", "b"));
  EXPECT_THAT(split("a,", ','), ElementsAre("a", ""));
  EXPECT_THAT(split(",", ','), ElementsAre("", ""));
  EXPECT_THAT(split("one", ','), ElementsAre("one"));
}

TEST(Split, OfBlanksHasNoParts) {
  EXPECT_THAT(split("", ','), IsEmpty());
  EXPECT_THAT(split(" \t\n", ','), IsEmpty());
}

TEST(Trim, TakesBlanksFromBothEnds) {
  EXPECT_EQ(trim("  a b\t\r\n"), "a b");
  EXPECT_EQ(trim("   "), "");
  EXPECT_EQ(trim(""), "");
}

TEST(Join, PutsTheSeparatorBetween) {
  EXPECT_EQ(join({"a", "b", "c"}, ", "), "a, b, c");
  EXPECT_EQ(join({"a"}, ", "), "a");
  EXPECT_EQ(join({}, ", "), "");
}

TEST(HumanBytes, ChoosesTheUnit) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.00 KiB");
  EXPECT_EQ(human_bytes(1536), "1.50 KiB");
  EXPECT_EQ(human_bytes(int64_t{5} << 30), "5.00 GiB");
  EXPECT_EQ(human_bytes(std::numeric_limits<int64_t>::max()), "8.00 EiB");
  EXPECT_EQ(human_bytes(-2048), "-2.00 KiB");
}

TEST(HumanBytes, NeverPrintsAThousandAndTwentyFourOfAUnit) {
  EXPECT_EQ(human_bytes(1024 * 1024 - 1), "1.00 MiB");
  EXPECT_EQ(human_bytes(1024 * 1024 - 1024 * 10), "1014.00 KiB");
}

TEST(Exact, ReadsBackAsTheSameDouble) {
  for (const double value : {0.1, 1.0 / 3, 1e-300, 5e-324, 1.7976931348623157e308, 123456789.123456789,
                             -2.5e-7, 1e22, static_cast<double>(0.1f)})
    EXPECT_EQ(std::strtod(exact(value).c_str(), nullptr), value) << exact(value);
  EXPECT_TRUE(std::signbit(std::strtod(exact(-0.0).c_str(), nullptr)));
}

TEST(Exact, IsTheShortestText) {
  EXPECT_EQ(exact(0.1), "0.1");
  EXPECT_EQ(exact(1), "1");
  EXPECT_EQ(exact(1.0 / 3), "0.3333333333333333");
}

TEST(Exact, NamesWhatIsNotFinite) {
  EXPECT_EQ(exact(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(exact(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(exact(std::numeric_limits<double>::quiet_NaN()), "nan");
  EXPECT_EQ(exact(-std::numeric_limits<double>::quiet_NaN()), "nan");
}

class ReadTextFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / "lockstep_text_test_XXXXXX";
    std::string pattern = folder_.string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

TEST_F(ReadTextFile, GivesEveryByte) {
  const std::string text("a\r\n\0b", 5);
  const std::string path = folder_ / "text";
  std::ofstream(path, std::ios::binary) << text;
  EXPECT_EQ(read_text_file(path), text);
  const std::string large(200'003, 'x');
  std::ofstream(path, std::ios::binary) << large;
  EXPECT_EQ(read_text_file(path), large);
  std::ofstream(path, std::ios::trunc).close();
  EXPECT_EQ(read_text_file(path), "");
}

TEST_F(ReadTextFile, NamesThePathAndTheReason) {
  const std::string missing = folder_ / "missing";
  try {
    read_text_file(missing);
    FAIL() << "a missing file was read";
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), HasSubstr(missing));
    EXPECT_THAT(error.what(), HasSubstr("No such file or directory"));
    EXPECT_EQ(error.code(), ExitCode::disk);
  }
}

TEST_F(ReadTextFile, DoesNotWaitForAPipe) {
  const std::string path = folder_ / "pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  try {
    read_text_file(path);
    FAIL() << "a pipe was read";
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), HasSubstr("regular file"));
  }
}

TEST_F(ReadTextFile, RefusesAFolder) {
  try {
    read_text_file(folder_);
    FAIL() << "a folder was read";
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), HasSubstr("Is a directory"));
  }
}

TEST(MatchesPattern, TakesStarsAndQuestionMarks) {
  for (const char* pattern :
       {"h.0.ln_1.weight", "*", "h.*", "*.weight", "h.?.*.weight", "*ln*", "h**t", "?.0.ln_1.weight*"})
    EXPECT_TRUE(matches_pattern(pattern, "h.0.ln_1.weight")) << pattern;
  for (const char* pattern : {"", "h", "*.bias", "h.??.ln_1.weight", "ln", "h.0.ln_1.weight?", "*h.0.ln_1"})
    EXPECT_FALSE(matches_pattern(pattern, "h.0.ln_1.weight")) << pattern;
  EXPECT_TRUE(matches_pattern("**", ""));
  EXPECT_FALSE(matches_pattern("?", ""));
}

}  // namespace
}  // namespace lockstep
