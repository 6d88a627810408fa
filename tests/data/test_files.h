#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace lockstep::test {

using Bytes = std::vector<uint8_t>;

/// A folder of its own for one test, removed with everything in it.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    // In memory where that is possible: some tests write thousands of small files.
    const bool in_memory = access("/dev/shm", W_OK | X_OK) == 0;
    const std::string parent = in_memory ? "/dev/shm" : std::filesystem::temp_directory_path().string();
    std::string name = parent + "/lockstep-test-XXXXXX";
    if (!mkdtemp(name.data())) throw std::runtime_error("cannot make " + name);
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline void write_file(const std::string& path, const Bytes& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}
inline void write_file(const std::string& path, const std::string& text) {
  write_file(path, Bytes(text.begin(), text.end()));
}
inline Bytes read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

/// The folder of real data, or "" where there is none.
inline std::string real_data(const std::string& name) {
  const char* folder = std::getenv("LOCKSTEP_TEST_DATA");
  const std::string path = std::string(folder ? folder : "") + "/" + name;
  return std::filesystem::exists(path) ? path : "";
}

/// What `action` throws as E, as text; fails the test where it throws nothing or something else.
template <class E, class Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "threw another error: " << error.what();
    return "";
  }
  ADD_FAILURE() << "threw nothing";
  return "";
}

}  // namespace lockstep::test
