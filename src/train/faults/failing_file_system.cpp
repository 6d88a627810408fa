#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "checkpoint/checkpoint.h"
#include "checkpoint/file_names.h"
#include "lockstep/error.h"
#include "train/faults/failpoints.h"

namespace lockstep::train {

/// The real file system, but for the operations that failpoints mean.
class FailingFileSystem : public FileSystem {
 public:
  FailingFileSystem(Failpoints& failpoints, FileSystem& real) : failpoints_(failpoints), real_(real) {}

  void make_directory(const std::string& path) override {
    notice_folder(step_of_temporary(path));
    before(path);
    real_.make_directory(path);
  }
  std::unique_ptr<WritableFile> create(const std::string& path) override {
    if (const auto step = step_of_temporary(std::filesystem::path(path).parent_path().string()))
      notice_checkpoint(*step);
    before(path);
    return std::make_unique<File>(*this, path);
  }
  void sync_directory(const std::string& path) override {
    before(path);
    real_.sync_directory(path);
  }
  void rename(const std::string& from, const std::string& to) override {
    before(from);
    real_.rename(from, to);
  }
  void remove_all(const std::string& path) override {
    before(path);
    real_.remove_all(path);
  }
  int64_t free_bytes(const std::string& path) override {
    before(path);
    return real_.free_bytes(path);
  }

 private:
  class File : public WritableFile {
   public:
    File(FailingFileSystem& owner, const std::string& path)
        : owner_(owner), path_(path), real_(owner.real_.create(path)) {}
    void write(const void* data, size_t size_bytes) override {
      // A disk that fills up takes a part first.
      owner_.before(path_, [&] { real_->write(data, size_bytes / 2); });
      real_->write(data, size_bytes);
    }
    void sync() override {
      owner_.before(path_);
      real_->sync();
    }
    void close() override {
      owner_.before(path_);
      real_->close();
    }

   private:
    FailingFileSystem& owner_;
    std::string path_;
    std::unique_ptr<WritableFile> real_;
  };

  /// Whoever begins a checkpoint makes the folder of all of them before anything else: what comes next, up to
  /// the temporary folder, tidies up and belongs to none.
  void notice_folder(const std::optional<int64_t>& step) {
    if (step)
      notice_checkpoint(*step);
    else
      step_.reset();
  }
  /// What comes now belongs to the checkpoint of `step`.
  void notice_checkpoint(int64_t step) {
    if (std::exchange(step_, step) != step) operations_ = 0;
  }
  /// Of the checkpoint whose temporary folder that is; nothing if it is another folder.
  static std::optional<int64_t> step_of_temporary(const std::string& folder) {
    std::string name = std::filesystem::path(folder).filename().string();
    if (!name.ends_with(checkpoint::kTemporarySuffix)) return std::nullopt;
    name.resize(name.size() - checkpoint::kTemporarySuffix.size());
    return checkpoint::step_of_folder_name(name);
  }

  template <class Cleanup = void (*)()>
  void before(
      const std::string& path, Cleanup&& when_failing = [] {}) {
    if (!step_) return;
    const Failpoint* failpoint = failpoints_.at_operation(*step_, ++operations_, path);
    if (failpoint == nullptr) return;
    when_failing();
    throw IoError(fmt::format("cannot write {}: {} (failpoint {})", path,
                              std::strerror(failpoint->kind == FaultKind::enospc ? ENOSPC : EIO),
                              to_text(*failpoint)));
  }

  Failpoints& failpoints_;
  FileSystem& real_;
  std::optional<int64_t> step_;
  int operations_ = 0;
};

std::unique_ptr<FileSystem> Failpoints::wrap(FileSystem& real) {
  return std::make_unique<FailingFileSystem>(*this, real);
}

}  // namespace lockstep::train
