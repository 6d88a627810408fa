#include "cli/stop_request.h"

#include <csignal>

namespace lockstep {
namespace {

// Signal handlers reach nothing else.
volatile std::sig_atomic_t received_signal = 0;

void remember(int signal) { received_signal = signal; }

}  // namespace

void install_stop_request(bool alone) {
  struct sigaction action {};
  action.sa_handler = remember;
  sigemptyset(&action.sa_mask);
  // Reads and waits go on undisturbed.
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigaction(SIGUSR1, &action, nullptr);
  if (!alone) return;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool stop_requested() { return received_signal != 0; }

ExitCode stop_exit_code() { return received_signal == SIGINT ? ExitCode::interrupted : ExitCode::terminated; }

}  // namespace lockstep
