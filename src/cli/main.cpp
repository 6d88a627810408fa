#include <fcntl.h>
#include <unistd.h>

#include <csignal>

#include "base/file_size_limit.h"
#include "cli/application.h"

namespace {

/// A program that is started with a standard descriptor closed would get its number for the next file it
/// opens, and write messages into it. Reading from or writing to these stand-ins fails or does nothing, as it
/// should.
void occupy_standard_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) != -1) continue;
    // Lowest free number first: this one. Results must not vanish, so standard output is one that cannot be
    // written to.
    if (open("/dev/null", descriptor == STDERR_FILENO ? O_WRONLY : O_RDONLY) != descriptor) _exit(74);
  }
}

/// Whoever reads the messages may go: a training goes on, and is saved. A write of results then fails.
void outlive_readers() { std::signal(SIGPIPE, SIG_IGN); }

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_descriptors();
  outlive_readers();
  lockstep::survive_file_size_limit();
  return lockstep::cli::run_command_line({argv + 1, argv + argc});
}
