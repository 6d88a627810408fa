#pragma once

#include <csignal>
#include <thread>
#include <utility>

namespace lockstep {

/// While this lives, no signal is delivered to the calling thread, nor ever to the threads that it starts.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

/// A thread that takes no signals: they are meant for the training thread, whose waiting they end. Writing to
/// a closed pipe is then an error, and does not end the process. `name`: at most 15 characters, shown by
/// tools.
template <class Body>
std::thread start_thread_without_signals(const char* name, Body body) {
  const SignalsBlocked blocked;
  std::thread thread(std::move(body));
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace lockstep
