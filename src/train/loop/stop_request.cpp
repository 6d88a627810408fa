#include "train/loop/stop_request.h"

#include <unistd.h>

#include <csignal>

namespace lockstep::train {
namespace {

// Signal handlers reach nothing else.
volatile std::sig_atomic_t received_signal = 0;
volatile std::sig_atomic_t is_to_end = 0;
volatile std::sig_atomic_t told_to_end = 0;

void request_stop(int signal) {
  if (received_signal == 0) received_signal = signal;
  // SIGUSR1 comes by several ways: to a whole process group and passed on by mpirun, or from each of those
  // who take a pod away, seconds apart, and then SIGTERM. None of them means that the checkpoint shall be
  // lost; whoever sends SIGTERM or SIGINT twice means it.
  if (signal == SIGUSR1) return;
  if (is_to_end != 0) _exit(static_cast<int>(ExitCode::ended_at_once));
  is_to_end = 1;
}

void note_end(int) { told_to_end = 1; }

}  // namespace

void install_stop_request(bool alone) {
  struct sigaction action {};
  action.sa_handler = request_stop;
  // One after the other: each looks at what the one before it noted.
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGUSR1, SIGINT, SIGTERM}) sigaddset(&action.sa_mask, signal);
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
