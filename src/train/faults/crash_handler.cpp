#include "train/faults/crash_handler.h"

#include <execinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>

#include "base/mapped_memory.h"

namespace lockstep::train {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};

volatile std::sig_atomic_t crash_rank = 0;
// The signal may come from an overflow of the ordinary stack.
alignas(16) std::array<char, 65536> handler_stack;

/// Text put together without memory of its own, as a signal handler must.
class Line {
 public:
  void add(const char* text) {
    const size_t length = std::min(std::strlen(text), text_.size() - size_);
    std::memcpy(text_.data() + size_, text, length);
    size_ += length;
  }
  void add(int number) {
    std::array<char, 12> digits{};
    size_t at = digits.size() - 1;
    do digits[--at] = static_cast<char>('0' + number % 10);
    while ((number /= 10) > 0 && at > 0);
    add(digits.data() + at);
  }
  void write() const { [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text_.data(), size_); }

 private:
  std::array<char, 256> text_{};
  size_t size_ = 0;
};

const char* signal_name(int signal) {
  switch (signal) {
    case SIGSEGV:
      return "SIGSEGV (an address that is not the program's)";
    case SIGBUS:
      return "SIGBUS (memory that is not there, such as a full /dev/shm or a file cut short)";
    case SIGILL:
      return "SIGILL (an instruction that this processor lacks: built for another one?)";
    case SIGFPE:
      return "SIGFPE (arithmetic)";
    default:
      return "SIGABRT (a library gave up)";
  }
}

void report(int signal) {
  Line line;
  line.add("lockstep: error: rank ");
  line.add(static_cast<int>(crash_rank));
  line.add(" (pid ");
  line.add(static_cast<int>(::getpid()));
  line.add(") crashed by ");
  line.add(signal_name(signal));
  line.add("; it was at:\n");
  line.write();
  std::array<void*, 32> frames;
  ::backtrace_symbols_fd(frames.data(), ::backtrace(frames.data(), static_cast<int>(frames.size())),
                         STDERR_FILENO);
  // SA_RESETHAND: it ends the process this time.
  ::raise(signal);
}

}  // namespace

void install_crash_handler() {
  if (kSanitized) return;
  // The first call loads a library, which a handler must not do.
  std::array<void*, 1> frame;
  ::backtrace(frame.data(), 1);
  stack_t stack{};
  stack.ss_sp = handler_stack.data();
  stack.ss_size = handler_stack.size();
  ::sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_handler = report;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_ONSTACK | SA_NODEFER | static_cast<int>(SA_RESETHAND);
  for (const int signal : kSignals) ::sigaction(signal, &action, nullptr);
  // Data may be open already.
  handle_missing_pages();
}

void set_crash_rank(int rank) { crash_rank = rank; }

}  // namespace lockstep::train
