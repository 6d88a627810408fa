#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/shared_library.h"

namespace lockstep::device {

/// NVIDIA's management library, libnvidia-ml.so.1, loaded and initialized for the lifetime of this object.
/// Functions are called by name, with the types that NVIDIA documents (nvml.h), so that the program needs
/// neither the library nor its header. Never throws. A call that the driver or the GPU does not support gives
/// nothing. Thread-safe, as the library is.
class Nvml {
 public:
  using Device = void*;  ///< nvmlDevice_t

  Nvml();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  bool present() const { return library_.loaded(); }  ///< whether there is such a library at all
  bool answers() const { return answers_; }
  const std::string& problem() const { return problem_; }  ///< why it does not answer

  /// Whether the function says that it has done what it should. REQUIRES, here and below: answers().
  template <class... Arguments>
  bool call(const char* name, Arguments... arguments) const {
    return library_.call(name, arguments...) == 0;
  }
  /// The text that `name` writes.
  template <class... Before>
  std::string text(const char* name, Before... before) const {
    constexpr unsigned kSize = 96;
    std::array<char, kSize> buffer{};
    return call(name, before..., buffer.data(), kSize) ? buffer.data() : "";
  }
  /// The number, or structure, that `name` writes.
  template <class Number, class... Before>
  std::optional<Number> number(const char* name, Before... before) const {
    Number value{};
    return call(name, before..., &value) ? std::optional(value) : std::nullopt;
  }

  unsigned device_count() const { return number<unsigned>("nvmlDeviceGetCount_v2").value_or(0); }
  /// Nothing if this GPU does not answer.
  std::optional<Device> device(unsigned index) const {
    return number<Device>("nvmlDeviceGetHandleByIndex_v2", index);
  }

 private:
  const SharedLibrary library_;
  bool answers_ = false;
  std::string problem_;
};

}  // namespace lockstep::device
