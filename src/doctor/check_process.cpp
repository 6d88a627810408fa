#include "doctor/check_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <thread>

#include "lockstep/error.h"

namespace lockstep::doctor {
namespace {

/// A process that was killed is gone at once, unless it hangs in the kernel, where nothing ends it.
constexpr std::chrono::milliseconds kPatienceWithKilled{100};

std::string result_of(const Check& check, const Request& request) {
  try {
    return encode(check.look(request));
  } catch (const std::exception& error) {
    return encode({{Level::fail, error.what(), std::string(check.by_hand)}});
  }
}

/// The child's life. What libraries and programs print here is not the command's.
[[noreturn]] void run_child(const Check& check, const Request& request, int pipe, pid_t parent) {
  if (::setpgid(0, 0) != 0) ::_exit(1);
  // If the command is ended, so is this process, with all that it has started.
  ::signal(SIGTERM, [](int) { ::kill(0, SIGKILL); });
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(1);
  ::signal(SIGPIPE, SIG_DFL);
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nothing, standard);
  const std::string text = result_of(check, request);
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t written = ::write(pipe, text.data() + sent, text.size() - sent);
    if (written < 0 && errno != EINTR) ::_exit(1);
    if (written > 0) sent += static_cast<size_t>(written);
  }
  ::_exit(0);
}

}  // namespace

CheckProcess::CheckProcess(const Check& check, const Request& request)
    : check_(&check), deadline_(deadline_in(std::chrono::seconds(check.limit_seconds))) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    throw IoError(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  pipe_ = control::Descriptor(ends[0]);
  const control::Descriptor writing(ends[1]);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) throw IoError(fmt::format("cannot start a process: {}", std::strerror(errno)));
  if (pid_ == 0) run_child(check, request, writing.get(), parent);
  ::setpgid(pid_, pid_);  // whoever comes first: give_up() must find the group
}

CheckProcess::~CheckProcess() { end_process(); }

void CheckProcess::receive() {
  std::array<char, 4096> part{};
  const ssize_t got = ::read(pipe_.get(), part.data(), part.size());
  if (got < 0 && errno == EINTR) return;
  if (got > 0) {
    text_.append(part.data(), static_cast<size_t>(got));
    return;
  }
  // What it may have left is ended while its number is still its own.
  siginfo_t ignored{};
  while (::waitid(P_PID, static_cast<id_t>(pid_), &ignored, WEXITED | WNOWAIT) < 0 && errno == EINTR)
    continue;
  ::kill(-pid_, SIGKILL);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) continue;
  pid_ = 0;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
    finish(decode(text_));
  else
    finish({{Level::fail,
             WIFSIGNALED(status) ? fmt::format("the check was ended by signal {} ({})", WTERMSIG(status),
                                               ::strsignal(WTERMSIG(status)))
                                 : fmt::format("the check ended with code {}", WEXITSTATUS(status)),
             std::string(check_->by_hand)}});
}

void CheckProcess::give_up() {
  end_process();
  finish({{Level::fail, fmt::format("took longer than {} s", check_->limit_seconds),
           std::string(check_->by_hand)}});
}

void CheckProcess::finish(std::vector<Finding> findings) {
  for (auto& each : findings) each.check = check_->name;
  findings_ = std::move(findings);
  finished_ = true;
  pipe_.reset();
}

void CheckProcess::end_process() noexcept {
  if (pid_ <= 0) return;
  ::kill(-pid_, SIGKILL);
  ::kill(pid_, SIGKILL);
  const Deadline deadline = deadline_in(kPatienceWithKilled);
  while (::waitpid(pid_, nullptr, WNOHANG) == 0 && Clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  pid_ = 0;
}

}  // namespace lockstep::doctor
