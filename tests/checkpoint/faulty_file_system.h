#pragma once

#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "lockstep/error.h"

namespace lockstep::test {

/// Thrown where the process "dies"; nothing that it does afterwards reaches the disk.
struct Crash : std::exception {
  const char* what() const noexcept override { return "crash"; }
};

/// The real file system, which fails or crashes at its n-th operation, and which knows what a power failure
/// may undo: contents that were not synced, entries made or renamed in folders that were not synced.
class FaultyFileSystem : public FileSystem {
 public:
  enum class Fault { none, error, crash };
  FaultyFileSystem(Fault fault, int at_operation) : fault_(fault), at_operation_(at_operation) {}

  int operations() const { return operations_; }
  bool fired() const { return operations_ >= at_operation_ && fault_ != Fault::none; }

  /// What a power failure leaves in the worst case. Unsynced files lose their second half.
  void lose_unsynced() {
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

  void make_directory(const std::string& path) override {
    before();
    real_.make_directory(path);
  }
  std::unique_ptr<WritableFile> create(const std::string& path) override {
    before();
    changes_.push_back({parent(path), "", path});
    unsynced_files_.insert(path);
    return std::make_unique<File>(*this, path);
  }
  void sync_directory(const std::string& path) override {
    before();
    std::erase_if(changes_, [&](const Change& change) { return change.folder == path; });
  }
  void rename(const std::string& from, const std::string& to) override {
    before();
    real_.rename(from, to);
    changes_.push_back({parent(from), from, to});
    std::set<std::string> moved;
    for (const auto& path : unsynced_files_)
      moved.insert(path.starts_with(from + "/") ? to + path.substr(from.size()) : path);
    unsynced_files_ = moved;
    for (auto& change : changes_)
      if (change.folder == from) {  // entries of the folder that was renamed
        change.folder = to;
        change.to = to + change.to.substr(from.size());
      }
  }
  void remove_all(const std::string& path) override {
    try {
      before();
    } catch (...) {
      if (operations_ == at_operation_) remove_one_file(path);
      throw;
    }
    real_.remove_all(path);
  }
  int64_t free_bytes(const std::string& path) override {
    before();
    return real_.free_bytes(path);
  }

 private:
  struct Change {
    std::string folder, from, to;  // `from` is empty where `to` was made
  };

  class File : public WritableFile {
   public:
    File(FaultyFileSystem& owner, const std::string& path)
        : owner_(owner), path_(path), real_(owner.real_.create(path)) {}
    void write(const void* data, size_t size_bytes) override {
      try {
        owner_.before();
      } catch (...) {
        if (owner_.operations_ == owner_.at_operation_) real_->write(data, size_bytes / 2);
        throw;
      }
      real_->write(data, size_bytes);
    }
    void sync() override {
      owner_.before();
      owner_.unsynced_files_.erase(path_);
    }
    void close() override {
      owner_.before();
      real_->close();
    }

   private:
    FaultyFileSystem& owner_;
    std::string path_;
    std::unique_ptr<WritableFile> real_;
  };

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

  void before() {
    ++operations_;
    if (fault_ == Fault::crash && operations_ >= at_operation_) throw Crash();
    if (fault_ == Fault::error && operations_ == at_operation_)
      throw IoError("cannot write: No space left on device, as the test wants it");
  }

  FileSystem& real_ = posix_file_system();
  Fault fault_;
  int at_operation_;
  int operations_ = 0;
  std::set<std::string> unsynced_files_;
  std::vector<Change> changes_;
};

}  // namespace lockstep::test
