#include "data/images/header_index.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "data/found_damage.h"
#include "data/images/image_writer.h"
#include "data/images/inspection.h"
#include "data/test_files.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;
using test::read_file;
using test::write_file;

class Headers : public ::testing::Test {
 protected:
  Headers() {
    options_.cache_directory = directory_ / "cache";
    fs::create_directories(directory_ / "train/a");
    for (int i = 0; i < 5; ++i) add(i, 4 + i);
  }
  /// An image of so many rows, which was changed an hour ago.
  void add(int image, int64_t height) {
    const auto pixels = std::vector<uint8_t>(static_cast<size_t>(height * 4), 7);
    write_file(path(image), png_bytes({height, 4, 1}, pixels));
    fs::last_write_time(path(image), fs::file_time_type::clock::now() - std::chrono::hours(1));
  }
  std::string path(int image) const { return directory_ / fmt::format("train/a/{}.png", image); }
  /// Changes bytes, and neither size nor time of change, so that nobody notices who does not read the file.
  void change_unseen(int image) const {
    const auto time = fs::last_write_time(path(image));
    write_file(path(image), test::Bytes(fs::file_size(path(image)), 1));
    fs::last_write_time(path(image), time);
  }
  ImageList list() const { return list_folder(directory_ / "train"); }
  Inspection inspect() const {
    return inspect_images(list(), std::vector<int32_t>(list().images.size()), options_);
  }
  std::string index() const {
    for (const auto& entry : fs::directory_iterator(options_.cache_directory))
      if (entry.path().extension() == ".index") return entry.path().string();
    return "";
  }

  test::TemporaryDirectory directory_;
  DataOptions options_;
};

TEST_F(Headers, OfFilesThatAreAsTheyWereAreNotReadAgain) {
  const auto first = inspect();
  ASSERT_EQ(first.images.size(), 5u);
  for (int i = 0; i < 5; ++i) change_unseen(i);
  const auto second = inspect();
  ASSERT_EQ(second.images.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(second.images[i].header, first.images[i].header);
    EXPECT_EQ(second.images[i].beginning, first.images[i].beginning);
    EXPECT_EQ(second.images[i].size_bytes, first.images[i].size_bytes);
    EXPECT_EQ(second.images[i].changed_ns, first.images[i].changed_ns);
    EXPECT_EQ(second.images[i].name, first.images[i].name);
  }
  // Who looks for damage reads them.
  options_.found = std::make_shared<FoundDamage>();
  options_.on_damage = DamagePolicy::skip;
  EXPECT_EQ(inspect().left_out, 5);
}

TEST_F(Headers, OfChangedAndNewFilesAreRead) {
  inspect();
  add(2, 40);
  EXPECT_EQ(inspect().images[2].header.height, 40);
  change_unseen(2);  // it is kept now
  EXPECT_EQ(inspect().images[2].header.height, 40);
  add(2, 40);
  add(7, 9);
  EXPECT_EQ(inspect().images.at(5).header.height, 9);
  fs::remove(path(0));
  EXPECT_EQ(inspect().images.size(), 5u);
}

TEST_F(Headers, OfFilesThatWereJustChangedAreReadAgain) {
  fs::last_write_time(path(1), fs::file_time_type::clock::now());
  inspect();
  change_unseen(1);
  EXPECT_THROW(inspect(), DataError);
}

TEST_F(Headers, AreReadIfWhatIsKeptIsDamaged) {
  inspect();
  const auto whole = read_file(index());
  for (int i = 0; i < 5; ++i) change_unseen(i);
  EXPECT_NO_THROW(inspect());
  for (size_t byte = 0; byte < whole.size(); ++byte) {
    auto bytes = whole;
    bytes[byte] ^= 1;
    write_file(index(), bytes);
    EXPECT_THROW(inspect(), DataError) << byte;
  }
  for (const size_t size : {size_t{0}, whole.size() / 2, whole.size() - 1}) {
    write_file(index(), test::Bytes(whole.begin(), whole.begin() + static_cast<long>(size)));
    EXPECT_THROW(inspect(), DataError) << size;
  }
}

TEST_F(Headers, AreReadByOneProcessWhileOthersWait) {
  std::vector<pid_t> processes;
  for (int p = 0; p < 4; ++p) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(inspect().images.size() == 5 ? 0 : 1);
    processes.push_back(child);
  }
  for (const pid_t child : processes) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_NE(index(), "");
  for (const auto& entry : fs::directory_iterator(options_.cache_directory))
    EXPECT_NE(entry.path().extension(), ".part");
}

TEST_F(Headers, AreReadIfNothingCanBeKept) {
  inspect();
  const std::string kept = index();
  fs::remove(kept);
  fs::create_directory(kept);  // nothing takes its place
  EXPECT_EQ(inspect().images.size(), 5u);
  EXPECT_EQ(inspect().images.size(), 5u);
}

}  // namespace
}  // namespace lockstep::data
