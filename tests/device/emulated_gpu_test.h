#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "device/emulated/emulated_device.h"

namespace lockstep::device {

/// An emulated GPU, one stream of it, and ways to put numbers there and to get them back.
class EmulatedGpuTest : public ::testing::Test {
 protected:
  template <class T>
  Buffer upload(const std::vector<T>& values) {
    Buffer buffer = device_.allocate(static_cast<int64_t>(values.size() * sizeof(T)));
    device_.copy_now(buffer.data(), values.data(), buffer.size_bytes());
    return buffer;
  }
  template <class T>
  std::vector<T> download(const Buffer& buffer) {
    std::vector<T> values(static_cast<size_t>(buffer.size_bytes()) / sizeof(T));
    device_.copy_now(values.data(), buffer.data(), buffer.size_bytes());
    return values;
  }
  template <class T>
  static T* at(const Buffer& buffer) {
    return reinterpret_cast<T*>(buffer.data());
  }

  EmulatedDevice device_{EmulatedOptions{}};
  std::unique_ptr<Stream> stream_ = device_.create_stream("compute");
};

}  // namespace lockstep::device
