#pragma once

#include <dlfcn.h>

#include <string>

namespace lockstep {

/// Loads a library, if it exists, for the lifetime of this object. Functions are looked up by name, so that
/// the program needs neither the library nor its headers.
class SharedLibrary {
 public:
  explicit SharedLibrary(const char* name) : handle_(::dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) problem_ = ::dlerror();
  }
  ~SharedLibrary() {
    if (handle_ != nullptr) ::dlclose(handle_);
  }
  SharedLibrary(const SharedLibrary&) = delete;

  bool loaded() const { return handle_ != nullptr; }
  const std::string& problem() const { return problem_; }

  /// Calls a function with these arguments that returns a status, as NVML's and CUDA's do. Returns kMissing
  /// if there is no such function. REQUIRES: loaded(), and the arguments are of the function's types.
  template <class... Arguments>
  int call(const char* name, Arguments... arguments) const {
    const auto function = reinterpret_cast<int (*)(Arguments...)>(::dlsym(handle_, name));
    return function == nullptr ? kMissing : function(arguments...);
  }
  static constexpr int kMissing = -1;

 private:
  void* handle_;
  std::string problem_;
};

}  // namespace lockstep
