#pragma once

#include <cerrno>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "lockstep/error.h"

namespace lockstep::test {

/// Thrown where the job "dies"; nothing that any of its ranks does afterwards reaches the disk.
struct Crash : std::exception {
  const char* what() const noexcept override { return "crash"; }
};

/// A disk that several ranks write to, and which knows what a power failure may undo: contents that were not
/// synced, entries made or renamed in folders that were not synced. Thread-safe.
class SharedDisk {
 public:
  /// What a power failure leaves in the worst case. Unsynced files lose their second half.
  void lose_unsynced() {
    const std::lock_guard lock(mutex_);
    for (const auto& path : unsynced_files_)
      if (std::filesystem::exists(path))
        std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
    for (auto change = changes_.rbegin(); change != changes_.rend(); ++change) {
      if (!std::filesystem::exists(change->to)) continue;
      if (change->from.empty())
        std::filesystem::remove(change->to);
      else
        std::filesystem::rename(change->to, change->from);
    }
  }

 private:
  friend class FaultyFileSystem;
  struct Change {
    std::string folder, from, to;  // `from` is empty where `to` was made
  };

  std::mutex mutex_;  // held during every operation: what happens behind a crash happens not at all
  bool dead_ = false;
  std::set<std::string> unsynced_files_;
  std::vector<Change> changes_;
};

/// One rank's view of a disk, which fails or crashes at its n-th operation.
class FaultyFileSystem : public FileSystem {
 public:
  /// io_error: that operation alone fails (EIO). no_space: so do all that follow and need space (ENOSPC).
  enum class Fault { none, io_error, no_space, crash };
  FaultyFileSystem(Fault fault, int at_operation,
                   std::shared_ptr<SharedDisk> disk = std::make_shared<SharedDisk>())
      : fault_(fault), at_operation_(at_operation), disk_(std::move(disk)) {}

  int operations() const { return operations_; }
  bool fired() const { return fired_; }
  void lose_unsynced() { disk_->lose_unsynced(); }

  void make_directory(const std::string& path) override {
    const std::lock_guard lock(disk_->mutex_);
    before("make the folder", path, kNeedsSpace);
    real_.make_directory(path);
  }
  std::unique_ptr<WritableFile> create(const std::string& path) override {
    const std::lock_guard lock(disk_->mutex_);
    before("create", path, kNeedsSpace);
    disk_->changes_.push_back({parent(path), "", path});
    disk_->unsynced_files_.insert(path);
    return std::make_unique<File>(*this, path);
  }
  void sync_directory(const std::string& path) override {
    const std::lock_guard lock(disk_->mutex_);
    before("sync the folder", path);
    std::erase_if(disk_->changes_, [&](const auto& change) { return change.folder == path; });
  }
  void rename(const std::string& from, const std::string& to) override {
    const std::lock_guard lock(disk_->mutex_);
    before("rename", from);
    real_.rename(from, to);
    disk_->changes_.push_back({parent(from), from, to});
    std::set<std::string> moved;
    for (const auto& path : disk_->unsynced_files_)
      moved.insert(path.starts_with(from + "/") ? to + path.substr(from.size()) : path);
    disk_->unsynced_files_ = moved;
    for (auto& change : disk_->changes_)
      if (change.folder == from) {  // entries of the folder that was renamed
        change.folder = to;
        change.to = to + change.to.substr(from.size());
      }
  }
  void remove_all(const std::string& path) override {
    const std::lock_guard lock(disk_->mutex_);
    try {
      before("remove", path);
    } catch (...) {
      if (operations_ == at_operation_) remove_one_file(path);
      throw;
    }
    real_.remove_all(path);
  }
  int64_t free_bytes(const std::string& path) override {
    const std::lock_guard lock(disk_->mutex_);
    before("ask for the free space of", path);
    return real_.free_bytes(path);
  }

 private:
  class File : public WritableFile {
   public:
    File(FaultyFileSystem& owner, const std::string& path)
        : owner_(owner), path_(path), real_(owner.real_.create(path)) {}
    void write(const void* data, size_t size_bytes) override {
      const std::lock_guard lock(owner_.disk_->mutex_);
      try {
        owner_.before("write", path_, kNeedsSpace);
      } catch (...) {
        if (owner_.operations_ == owner_.at_operation_) real_->write(data, size_bytes / 2);
        throw;
      }
      real_->write(data, size_bytes);
    }
    void sync() override {
      const std::lock_guard lock(owner_.disk_->mutex_);
      owner_.before("write", path_, kNeedsSpace);
      owner_.disk_->unsynced_files_.erase(path_);
    }
    void close() override {
      const std::lock_guard lock(owner_.disk_->mutex_);
      owner_.before("close", path_);
      real_->close();
    }

   private:
    FaultyFileSystem& owner_;
    std::string path_;
    std::unique_ptr<WritableFile> real_;
  };

  static constexpr bool kNeedsSpace = true;

  static std::string parent(const std::string& path) {
    return std::filesystem::path(path).parent_path().string();
  }

  /// What a removal that was interrupted has done.
  static void remove_one_file(const std::string& path) {
    std::error_code nothing_there;
    for (const auto& entry : std::filesystem::directory_iterator(path, nothing_there))
      if (entry.path().filename() != "manifest.json") {
        std::filesystem::remove(entry.path());
        return;
      }
  }

  void before(const char* action, const std::string& path, bool needs_space = false) {
    ++operations_;
    if (fault_ == Fault::crash && operations_ == at_operation_) fired_ = disk_->dead_ = true;
    if (disk_->dead_) throw Crash();
    const bool fails = fault_ == Fault::io_error   ? operations_ == at_operation_
                       : fault_ == Fault::no_space ? operations_ >= at_operation_ && needs_space
                                                   : false;
    if (!fails) return;
    fired_ = true;
    throw_io_error(action, path, path, fault_ == Fault::io_error ? EIO : ENOSPC);
  }

  FileSystem& real_ = posix_file_system();
  Fault fault_;
  int at_operation_;
  std::shared_ptr<SharedDisk> disk_;
  int operations_ = 0;
  bool fired_ = false;
};

}  // namespace lockstep::test
