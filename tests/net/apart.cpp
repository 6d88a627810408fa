#include "net/apart.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace lockstep::net {
namespace {

constexpr int kLimitSeconds =
    240;  // a case takes a tenth of a second; sanitizers and busy machines take their time

/// What the child tells, in front of the finding's words.
struct Answer {
  bool found = false, bits = false, diverged = false, compared = false, tensors = false;
  Finding::Kind kind = Finding::Kind::error;
  int64_t tensor_count = 0, sharp_tensors = 0, state_count = 0, sharp_states = 0;
};

void read_answer(const Answer& told, CheckReport& report) {
  report = {.bits = told.bits, .diverged = told.diverged, .oracle = {}};
  report.oracle.compared = told.compared;
  report.oracle.tensors = told.tensors;
  report.oracle.tensor_count = told.tensor_count;
  report.oracle.sharp_tensors = told.sharp_tensors;
  report.oracle.state_count = told.state_count;
  report.oracle.sharp_states = told.sharp_states;
}

[[noreturn]] void answer(int pipe, const Case& test_case, const CheckOptions& options) {
  CheckReport report;
  const OracleReport& oracle = report.oracle;
  std::optional<Finding> finding;
  try {
    finding = check_case(test_case, options, &report);
  } catch (const std::exception& failure) {
    finding = Finding{Finding::Kind::error, failure.what()};
  }
  const Answer answer{.found = finding.has_value(),
                      .bits = report.bits,
                      .diverged = report.diverged,
                      .compared = oracle.compared,
                      .tensors = oracle.tensors,
                      .kind = finding ? finding->kind : Finding::Kind::error,
                      .tensor_count = oracle.tensor_count,
                      .sharp_tensors = oracle.sharp_tensors,
                      .state_count = oracle.state_count,
                      .sharp_states = oracle.sharp_states};
  std::string bytes(reinterpret_cast<const char*>(&answer), sizeof answer);
  if (finding) bytes += finding->what.substr(0, 4000);  // a pipe takes them without a reader
  const bool written = write(pipe, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
  _exit(written ? 0 : 1);
}

std::string read_all(int pipe, pid_t child) {
  std::string bytes;
  char room[4096];
  for (;;) {
    pollfd waiting{pipe, POLLIN, 0};
    const int ready = poll(&waiting, 1, kLimitSeconds * 1000);
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) {
      kill(child, SIGKILL);
      return "";
    }
    const ssize_t count = read(pipe, room, sizeof room);
    if (count <= 0) return bytes;
    bytes.append(room, static_cast<size_t>(count));
  }
}

}  // namespace

std::optional<Finding> check_apart(const Case& test_case, const CheckOptions& options, CheckReport* report) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("there is no pipe for a case's answer");
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("there is no process for a case");
  if (child == 0) {
    close(ends[0]);
    answer(ends[1], test_case, options);
  }
  close(ends[1]);
  const std::string bytes = read_all(ends[0], child);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  Answer told;
  if (bytes.size() < sizeof told) {
    const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    return Finding{Finding::Kind::crash, signal == SIGKILL ? fmt::format("nothing for {} s", kLimitSeconds)
                                                           : fmt::format("signal {}", signal)};
  }
  std::memcpy(static_cast<void*>(&told), bytes.data(), sizeof told);
  if (report != nullptr) read_answer(told, *report);
  if (!told.found) return std::nullopt;
  return Finding{told.kind, bytes.substr(sizeof told)};
}

}  // namespace lockstep::net
