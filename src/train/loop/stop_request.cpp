#include "train/loop/stop_request.h"

#include <unistd.h>

#include <csignal>
#include <ctime>

namespace lockstep::train {
namespace {

constexpr std::sig_atomic_t kSameRequestSeconds = 2;

// Signal handlers reach nothing else.
volatile std::sig_atomic_t received_signal = 0;
volatile std::sig_atomic_t told_to_end = 0;

volatile std::sig_atomic_t received_second = 0;

std::sig_atomic_t second_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::sig_atomic_t>(now.tv_sec);
}

void request_stop(int signal) {
  if (received_signal == 0) {
    received_second = second_now();
    received_signal = signal;
    return;
  }
  // A signal to a whole process group reaches a rank twice: itself, and passed on by mpirun.
  if (signal == SIGUSR1 && second_now() - received_second < kSameRequestSeconds) return;
  _exit(static_cast<int>(ExitCode::ended_at_once));
}

void note_end(int) { told_to_end = 1; }

}  // namespace

void install_stop_request(bool alone) {
  struct sigaction action {};
  action.sa_handler = request_stop;
  sigemptyset(&action.sa_mask);
  // Reads and waits go on undisturbed.
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  if (alone) {
    sigaction(SIGINT, &action, nullptr);
  } else {
    action.sa_handler = note_end;
  }
  sigaction(SIGTERM, &action, nullptr);
}

bool stop_requested() { return received_signal != 0; }

bool termination_requested() { return told_to_end != 0; }

ExitCode stop_exit_code() { return received_signal == SIGINT ? ExitCode::interrupted : ExitCode::terminated; }

}  // namespace lockstep::train
