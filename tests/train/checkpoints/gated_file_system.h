#pragma once

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>

#include "base/file_system.h"

namespace lockstep::test {

/// The real file system, which holds whoever creates a file of a name with `held` in it until it is opened.
class GatedFileSystem : public FileSystem {
 public:
  explicit GatedFileSystem(std::string held) : held_(std::move(held)) {}
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void await_visitor() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return visited_; });
  }
  std::unique_ptr<WritableFile> create(const std::string& path) override {
    if (path.find(held_) != std::string::npos) {
      std::unique_lock lock(mutex_);
      visited_ = true;
      changed_.notify_all();
      changed_.wait(lock, [&] { return open_; });
    }
    return real_.create(path);
  }
  void make_directory(const std::string& path) override { real_.make_directory(path); }
  void sync_directory(const std::string& path) override { real_.sync_directory(path); }
  void rename(const std::string& from, const std::string& to) override { real_.rename(from, to); }
  void remove_all(const std::string& path) override { real_.remove_all(path); }
  int64_t free_bytes(const std::string& path) override { return real_.free_bytes(path); }

 private:
  FileSystem& real_ = posix_file_system();
  std::string held_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false, visited_ = false;
};

/// The real file system, which keeps from creating the first file of a name with `failing` in it.
class FailingOnce : public GatedFileSystem {
 public:
  explicit FailingOnce(std::string failing)
      : GatedFileSystem("nothing is held"), failing_(std::move(failing)) {}
  std::unique_ptr<WritableFile> create(const std::string& path) override {
    if (path.find(failing_) != std::string::npos && !failed_.exchange(true))
      throw_io_error("create", path, path, EIO);
    return GatedFileSystem::create(path);
  }

 private:
  std::string failing_;
  std::atomic<bool> failed_ = false;
};

}  // namespace lockstep::test
