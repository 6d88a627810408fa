#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/message_port.h"
#include "device/device.h"
#include "lockstep/error.h"

namespace lockstep::comm {

/// The stream that every check passes on: host backends have no use for it.
class HostStream {
 public:
  operator device::Stream&() { return *stream_; }

 private:
  std::unique_ptr<device::Device> device_ = device::make_cpu_device();
  std::unique_ptr<device::Stream> stream_ = device_->create_stream("test");
};

/// Waits that checks have begun: whoever looks after a test sees by them that it gets on.
inline std::atomic<int64_t> waits_begun = 0;

/// Long enough for a loaded machine under a sanitizer; a check that hangs fails with the operation's name.
inline Deadline patience() {
  ++waits_begun;
  return deadline_in(std::chrono::seconds(30));
}
inline Deadline soon() { return deadline_in(std::chrono::milliseconds(300)); }

/// What rank `rank` puts at `index`: small integers, so that every order of summation gives the same float.
template <class T>
T element(int rank, int64_t index) {
  return static_cast<T>((rank + 1) * 3 + (index * 7) % 11 - 5);
}

template <class T>
std::vector<T> elements(int rank, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = element<T>(rank, i);
  return values;
}

/// Memory that stays for ever: for operations that an error leaves behind.
template <class T>
T* immortal(size_t count) {
  static auto* keep = new std::vector<std::unique_ptr<T[]>>;
  static auto* mutex = new std::mutex;
  std::lock_guard lock(*mutex);
  return keep->emplace_back(new T[count]()).get();
}

/// The message of the CommError that `action` throws; fails the test and gives "" where it throws none.
inline std::string comm_error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const CommError& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected a CommError";
  return "";
}

}  // namespace lockstep::comm
