#include "jobs/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/text.h"
#include "doctor/launcher.h"
#include "lockstep/error.h"

namespace lockstep::jobs {
namespace {

[[noreturn]] void fail(const std::string& what, int error) {
  throw IoError(fmt::format("cannot {}: {}", what, std::strerror(error)));
}

int open_for_writing(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) fail("write " + path, errno);
  return file;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (auto& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> environment_with(const std::map<std::string, std::string>& additions) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  for (const auto& [name, value] : additions)
    if (std::getenv(name.c_str()) == nullptr) environment.push_back(name + "=" + value);
  return environment;
}

}  // namespace

RunningChild::RunningChild(const ChildProcess& child) : name_(child.command[0]) {
  // Everything that allocates comes before the fork: this process may have threads.
  std::vector<std::string> command = child.command, environment = environment_with(child.environment);
  const auto arguments = pointers_to(command), variables = pointers_to(environment);
  const int out = open_for_writing(child.stdout_path), err = open_for_writing(child.stderr_path);
  const int in = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) fail("start " + name_, errno);
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(127);  // it ended before the line above
    ::signal(SIGPIPE, SIG_DFL);
    ::dup2(in, STDIN_FILENO);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(err, STDERR_FILENO);
    ::execvpe(arguments[0], arguments.data(), variables.data());
    const char message[] = "cannot start the program\n";
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, message, sizeof(message) - 1);
    ::_exit(127);
  }
  for (const int file : {in, out, err}) ::close(file);
}

RunningChild::~RunningChild() {
  if (code_) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
}

std::optional<int> RunningChild::poll() {
  int status = 0;
  pid_t waited = 0;
  while (!code_ && (waited = ::waitpid(pid_, &status, WNOHANG)) < 0)
    if (errno != EINTR) fail("wait for " + name_, errno);
  if (!code_ && waited == pid_) code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return code_;
}

std::map<std::string, std::string> mpirun_environment() {
  std::map<std::string, std::string> environment = {{"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                                                    {"OMPI_MCA_hwloc_base_binding_policy", "none"},
                                                    {"OMPI_MCA_mpi_yield_when_idle", "1"}};
  if (::geteuid() == 0) {
    environment["OMPI_ALLOW_RUN_AS_ROOT"] = "1";
    environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1";
  }
  environment.merge(doctor::missing_for_mpirun());
  return environment;
}

std::string own_program() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) fail("find the running program by /proc/self/exe", error.value());
  return path.string();
}

bool on_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  for (const auto& folder : split(path ? path : "/bin:/usr/bin", ':'))  // as execvp has it
    if (!folder.empty() && ::access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  return false;
}

}  // namespace lockstep::jobs
