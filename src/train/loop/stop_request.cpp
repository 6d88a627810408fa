#include "train/loop/stop_request.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>

namespace lockstep::train {
namespace {

// Signal handlers reach nothing else.
volatile std::sig_atomic_t received_signal = 0;
volatile std::sig_atomic_t is_to_end = 0;
volatile int64_t asked_at_ms =
    0;  // is_to_end since then; only read and written while all of these are blocked
std::atomic<int64_t> told_to_end_at_ms = 0;  // 0: nobody has
static_assert(std::atomic<int64_t>::is_always_lock_free);
int64_t patience_ms = 0;

/// By now, on a clock that no one sets.
int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

void request_stop(int signal) {
  if (received_signal == 0) received_signal = signal;
  // SIGUSR1 comes by several ways: to a whole process group and passed on by mpirun, or from each of those
  // who take a pod away, seconds apart, and then SIGTERM. None of them means that the checkpoint shall be
  // lost; whoever sends one of the others twice means it. Not at the same time, though: `timeout` tells its
  // child, then its group, and a terminal that closes tells everybody.
  if (signal == SIGUSR1) return;
  const int64_t now = now_ms();
  if (is_to_end == 0)
    asked_at_ms = now;
  else if (now - asked_at_ms > kOneRequestMs)
    _exit(static_cast<int>(ExitCode::ended_at_once));
  is_to_end = 1;
}

void note_end(int) {
  if (told_to_end_at_ms == 0) told_to_end_at_ms = std::max<int64_t>(now_ms(), 1);
}

/// What nohup or a shell's background job ignores stays ignored.
void take(int signal, const struct sigaction& action) {
  struct sigaction before {};
  sigaction(signal, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
}

}  // namespace

void install_stop_request(bool alone, std::chrono::milliseconds patience) {
  patience_ms = patience.count();
  struct sigaction action {};
  action.sa_handler = request_stop;
  // One after the other: each looks at what the one before it noted.
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGUSR1, SIGINT, SIGTERM, SIGHUP}) sigaddset(&action.sa_mask, signal);
  // Reads and waits go on undisturbed.
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  if (alone) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) take(signal, action);
    return;
  }
  action.sa_handler = note_end;
  sigaction(SIGTERM, &action, nullptr);
}

bool stop_requested() { return received_signal != 0; }

// Asked to stop, too, a rank saves: SIGTERM came to the launcher and to all ranks at once. A launcher that
// means it kills the rank soon.
bool termination_requested() {
  const int64_t told = told_to_end_at_ms;
  return told != 0 && received_signal == 0 && now_ms() - told >= patience_ms;
}

ExitCode stop_exit_code() { return received_signal == SIGINT ? ExitCode::interrupted : ExitCode::terminated; }

}  // namespace lockstep::train
