#include "data/images/header_index.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>
#include <thread>

#include "data/found_damage.h"
#include "data/images/image_writer.h"
#include "data/images/inspection.h"
#include "data/stop.h"
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
  /// Changes bytes, and neither size nor time of change, as tools can that write metadata.
  void change_like_tools(int image) const {
    const auto time = fs::last_write_time(path(image));
    write_file(path(image), test::Bytes(fs::file_size(path(image)), 1));
    fs::last_write_time(path(image), time);
  }
  /// Makes every image that is known 100 rows higher, in the index alone.
  void raise_kept() const {
    const auto bytes = read_file(index());
    uint64_t hash = 0;
    std::memcpy(&hash, bytes.data() + 8, sizeof hash);
    const std::string_view view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    auto known = headers_from_bytes(view, hash, list().images.size());
    ASSERT_TRUE(known);
    for (auto& each : *known) each.header.height += 100;
    const std::string raised = header_index_bytes(hash, *known);
    write_file(index(), test::Bytes(raised.begin(), raised.end()));
  }
  int64_t height(int image) const { return inspect().images.at(static_cast<size_t>(image)).header.height; }
  ImageList list() const { return list_folder(directory_ / "train"); }
  Inspection inspect() const {
    return inspect_images(list(), std::vector<int32_t>(list().images.size()), options_, settling_);
  }
  /// How many locks of the cache this process has, by its open files.
  int locks_held() const {
    int held = 0;
    std::error_code unknown;
    for (const auto& entry : fs::directory_iterator("/proc/self/fd"))
      if (fs::read_symlink(entry, unknown).extension() == ".lock") ++held;
    return held;
  }
  std::string index() const {
    for (const auto& entry : fs::directory_iterator(options_.cache_directory))
      if (entry.path().extension() == ".headers") return entry.path().string();
    return "";
  }

  test::TemporaryDirectory directory_;
  DataOptions options_;
  std::chrono::nanoseconds settling_{0};  // files are a moment old
};

TEST_F(Headers, ThatAreAllKnownAreNoReasonToStopFor) {
  options_.stop_requested = [] { return true; };
  EXPECT_THROW(inspect(), StopRequested);  // they are to be read
  options_.stop_requested = nullptr;
  inspect();
  options_.stop_requested = [] { return true; };
  EXPECT_EQ(inspect().images.size(), 5u);
}

TEST_F(Headers, OfFilesThatAreAsTheyWereAreNotReadAgain) {
  const auto first = inspect();
  ASSERT_EQ(first.images.size(), 5u);
  raise_kept();
  const auto second = inspect();
  ASSERT_EQ(second.images.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(second.images[i].header.height, first.images[i].header.height + 100);
    EXPECT_EQ(second.images[i].beginning, first.images[i].beginning);
    EXPECT_EQ(second.images[i].size_bytes, first.images[i].size_bytes);
    EXPECT_EQ(second.images[i].changed_ns, first.images[i].changed_ns);
    EXPECT_EQ(second.images[i].name, first.images[i].name);
  }
  // Who looks for damage reads them.
  options_.found = std::make_shared<FoundDamage>();
  EXPECT_EQ(height(0), 4);
}

TEST_F(Headers, OfChangedAndNewFilesAreRead) {
  inspect();
  add(2, 40);
  EXPECT_EQ(height(2), 40);
  raise_kept();
  EXPECT_EQ(height(2), 140);
  add(7, 9);
  EXPECT_EQ(inspect().images.at(5).header.height, 9);
  fs::remove(path(0));
  EXPECT_EQ(inspect().images.size(), 5u);
}

TEST_F(Headers, OfFilesThatWereChangedWithTheirOldTimesAreRead) {
  inspect();
  change_like_tools(1);
  EXPECT_THROW(inspect(), DataError);
  add(1, 5);
  EXPECT_EQ(height(1), 5);
  // Another file of this name, as `cp -p` makes one.
  inspect();
  raise_kept();
  add(9, 5);
  fs::rename(path(9), path(1));
  const auto images = inspect().images;
  EXPECT_EQ(images[0].header.height, 104);
  EXPECT_EQ(images[1].header.height, 5);
}

TEST_F(Headers, OfFilesThatWereJustChangedAreReadAgain) {
  settling_ = std::chrono::hours(1) - std::chrono::minutes(1);  // less than since the bytes were changed
  inspect();
  raise_kept();
  EXPECT_EQ(height(1), 5) << "its status was changed just now";
}

TEST_F(Headers, AreReadIfWhatIsKeptIsDamaged) {
  inspect();
  raise_kept();
  const auto whole = read_file(index());
  EXPECT_EQ(height(0), 104);
  for (size_t byte = 0; byte < whole.size(); ++byte) {
    auto bytes = whole;
    bytes[byte] ^= 1;
    write_file(index(), bytes);
    EXPECT_EQ(height(0), 4) << byte;
  }
  for (const size_t size : {size_t{0}, whole.size() / 2, whole.size() - 1}) {
    write_file(index(), test::Bytes(whole.begin(), whole.begin() + static_cast<long>(size)));
    EXPECT_EQ(height(0), 4) << size;
  }
  fs::resize_file(index(), uint64_t{1} << 40);  // more than there is memory
  EXPECT_EQ(height(0), 4);
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
    EXPECT_NE(entry.path().extension(), ".new");
}

/// A process that has locked the index, and ends with this object.
class Holder {
 public:
  Holder(const std::string& directory, const ImageList& list) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    child_ = ::fork();
    if (child_ == 0) {
      const HeaderIndex held(directory, list);
      if (::write(ready[1], "x", 1) == 1) ::pause();
      ::_exit(1);
    }
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~Holder() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

 private:
  pid_t child_;
};

TEST_F(Headers, AreReadIfTheProcessThatReadsThemDoesNotGetOn) {
  const Holder holder(options_.cache_directory, list());
  HeaderIndex index(options_.cache_directory, list(), std::chrono::milliseconds(50));
  EXPECT_EQ(index.find(0, path(0)), nullptr);
  // What this one keeps, others find.
  std::vector<KnownHeader> headers(5);
  headers[0] = {.stamp = *file_stamp(path(0)), .beginning = 1, .header = {.height = 7, .width = 1}};
  index.keep(headers, settling_);
  EXPECT_NE(HeaderIndex(options_.cache_directory, list()).find(0, path(0)), nullptr);
}

TEST_F(Headers, AreNotWaitedForByWhoIsAskedToStop) {
  const Holder holder(options_.cache_directory, list());
  static std::atomic<int> questions = 0;
  EXPECT_THROW(
      HeaderIndex(options_.cache_directory, list(), std::chrono::hours(1), [] { return ++questions > 2; }),
      StopRequested);
  EXPECT_EQ(questions, 3);
}

TEST_F(Headers, LockIsGivenBackIfTheOneBeforeKeptNothing) {
  auto holder = std::make_optional<Holder>(options_.cache_directory, list());
  std::optional<HeaderIndex> waited;
  std::jthread waits([&] { waited.emplace(options_.cache_directory, list()); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  holder.reset();
  waits.join();
  // Nobody has the lock: this one gets it without a wait.
  const HeaderIndex next(options_.cache_directory, list(), std::chrono::milliseconds(0));
  const HeaderIndex other(options_.cache_directory, list(), std::chrono::milliseconds(0));
  EXPECT_EQ(locks_held(), 1);
}

TEST_F(Headers, OfTheLastListsAreKept) {
  fs::create_directories(options_.cache_directory);
  const auto make = [&](const std::string& name, int hours) {
    const std::string file = options_.cache_directory + "/" + name;
    write_file(file, test::Bytes(3, 1));
    fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::hours(hours));
    return file;
  };
  std::vector<std::string> indexes;
  for (int i = 0; i < 9; ++i) indexes.push_back(make(fmt::format("{}.headers", i), i));
  const auto old = make("a.headers.7.new", 30), written = make("a.headers.8.new", 1),
             other = make("b.copy", 30);
  inspect();
  for (size_t i = 0; i < 9; ++i) EXPECT_EQ(fs::exists(indexes[i]), i < 7) << i;
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(written));
  EXPECT_TRUE(fs::exists(other));
}

TEST_F(Headers, AreReadIfNothingCanBeKept) {
  inspect();
  const std::string kept = index();
  fs::remove(kept);
  fs::create_directories(kept + "/full");  // nothing takes its place
  EXPECT_EQ(inspect().images.size(), 5u);
  EXPECT_EQ(inspect().images.size(), 5u);
}

}  // namespace
}  // namespace lockstep::data
