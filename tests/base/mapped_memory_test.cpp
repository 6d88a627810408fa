#include "base/mapped_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <thread>
#include <vector>

#include "lockstep/error.h"

namespace lockstep {
namespace {

/// Pages of a file in memory, which can be cut short.
class MappedFile {
 public:
  MappedFile() : descriptor_(::memfd_create("mapped", MFD_CLOEXEC)) {
    EXPECT_EQ(::ftruncate(descriptor_, static_cast<off_t>(size())), 0);
    data_ = static_cast<const uint8_t*>(::mmap(nullptr, size(), PROT_READ, MAP_SHARED, descriptor_, 0));
  }
  ~MappedFile() {
    ::munmap(const_cast<uint8_t*>(data_), size());
    ::close(descriptor_);
  }
  void cut() { EXPECT_EQ(::ftruncate(descriptor_, static_cast<off_t>(page_)), 0); }
  size_t size() const { return 4 * page_; }
  const uint8_t* data() const { return data_; }
  /// Reads the last byte.
  bool read_end() const {
    volatile uint8_t byte = 1;
    return read_mapped(data_, size(), [&]() noexcept { byte = data_[size() - 1]; }) && byte == 0;
  }

 private:
  size_t page_ = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  int descriptor_;
  const uint8_t* data_;
};

TEST(MappedMemory, OfAFileThatWasCutShortIsNotRead) {
  handle_missing_pages();
  MappedFile file, whole;
  EXPECT_TRUE(file.read_end());
  file.cut();
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(file.read_end());
  EXPECT_TRUE(whole.read_end());
}

TEST(MappedMemory, IsReadByAllThreads) {
  handle_missing_pages();
  MappedFile file;
  file.cut();
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) EXPECT_FALSE(file.read_end());
    });
}

void leave(int /*signal*/) { _exit(3); }

void fail_elsewhere() {
  std::signal(SIGBUS, leave);
  handle_missing_pages();
  MappedFile file, other;
  file.cut();
  volatile uint8_t byte = 0;
  const auto read = [&]() noexcept { byte = file.data()[file.size() - 1]; };
  _exit(read_mapped(other.data(), other.size(), read) ? 4 : 5);
}

void take_back() {
  handle_missing_pages();
  std::signal(SIGBUS, leave);
  handle_missing_pages();
  MappedFile file;
  file.cut();
  _exit(file.read_end() ? 4 : 0);
}

volatile std::sig_atomic_t sent = 0;
struct sigaction before_theirs {};

/// A signal that is sent is handled by others, and pages that are missing go on being handled here.
void send_signals() {
  std::signal(SIGBUS, [](int) { sent = sent + 1; });
  handle_missing_pages();
  for (int i = 0; i < 3; ++i) ::raise(SIGBUS);
  ::kill(::getpid(), SIGBUS);
  MappedFile file;
  file.cut();
  _exit(!file.read_end() && sent == 4 ? 0 : 4);
}

/// Others that hand on to who came before them, which is this handler.
void hand_on(int signal, siginfo_t* info, void* context) {
  before_theirs.sa_sigaction(signal, info, context);
}

void hand_on_for_ever() {
  std::signal(SIGBUS, leave);
  handle_missing_pages();
  struct sigaction theirs {};
  theirs.sa_sigaction = hand_on;
  theirs.sa_flags = SA_SIGINFO | SA_NODEFER;
  ::sigaction(SIGBUS, &theirs, &before_theirs);
  handle_missing_pages();
  MappedFile file;
  file.cut();
  volatile uint8_t byte = file.data()[file.size() - 1];
  _exit(byte + 4);
}

void forget() {
  std::signal(SIGBUS, leave);
  handle_missing_pages();
  struct sigaction own {};
  ::sigaction(SIGBUS, nullptr, &own);
  std::signal(SIGBUS, [](int) { _exit(4); });
  handle_missing_pages();
  ::sigaction(SIGBUS, &own, nullptr);
  forget_later_handlers();
  ::raise(SIGBUS);
  _exit(5);
}

TEST(MappedMemory, IsNotReadWithinAnotherRead) {
  MappedFile file;
  bool was_refused = false;
  const auto within = [&]() noexcept {
    try {
      static_cast<void>(file.read_end());
    } catch (const InternalError&) {
      was_refused = true;
    }
  };
  EXPECT_TRUE(read_mapped(file.data(), file.size(), within));
  EXPECT_TRUE(was_refused);
}

TEST(MappedMemoryDeathTest, LeavesSignalsThatAreSentToOthers) {
  EXPECT_EXIT(send_signals(), ::testing::ExitedWithCode(0), "");
}

TEST(MappedMemoryDeathTest, EndsWithTheFirstHandlerIfOthersHandOn) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // in a process where nobody has taken the signal
  EXPECT_EXIT(hand_on_for_ever(), ::testing::ExitedWithCode(3), "");
}

TEST(MappedMemoryDeathTest, ForgetsHandlersThatAreGone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(forget(), ::testing::ExitedWithCode(3), "");
}

TEST(MappedMemoryDeathTest, LeavesOtherSignalsToWhoHandledThem) {
  EXPECT_EXIT(fail_elsewhere(), ::testing::ExitedWithCode(3), "");
}

TEST(MappedMemoryDeathTest, TakesTheSignalAgainFromWhoTookItSince) {
  EXPECT_EXIT(take_back(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace lockstep
