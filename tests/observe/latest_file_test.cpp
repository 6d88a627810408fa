#include "observe/latest_file.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "data/test_files.h"

namespace lockstep::observe {
namespace {

TEST(LatestFile, HasTheLastTextWhenItIsDestroyed) {
  const test::TemporaryDirectory folder;
  {
    LatestFile file(folder / "latest", std::chrono::hours(1));
    EXPECT_TRUE(file.due());
    for (int i = 0; i <= 100; ++i) file.replace(std::to_string(i));
    EXPECT_FALSE(file.due());
  }
  EXPECT_EQ(read_text_file(folder / "latest"), "100");
}

TEST(LatestFile, WithoutATextMakesNoFile) {
  const test::TemporaryDirectory folder;
  { const LatestFile file(folder / "latest", std::chrono::hours(1)); }
  EXPECT_THROW(read_text_file(folder / "latest"), std::exception);
}

TEST(LatestFile, OutlivesAFolderThatIsGone) {
  const test::TemporaryDirectory folder;
  LatestFile file(folder / "missing/latest", std::chrono::hours(1));
  file.replace("text");
}

}  // namespace
}  // namespace lockstep::observe
