#include "train/checkpoints/reported_file_system.h"

#include <utility>

#include "train/worker/worker.h"

namespace lockstep::train {

class ReportedFileSystem::File : public WritableFile {
 public:
  File(ReportedFileSystem& owner, std::unique_ptr<WritableFile> file)
      : owner_(owner), file_(std::move(file)) {}
  void write(const void* data, size_t size_bytes) override {
    owner_.report();
    file_->write(data, size_bytes);
  }
  void sync() override {
    owner_.report();
    file_->sync();
  }
  void close() override {
    owner_.report();
    file_->close();
  }

 private:
  ReportedFileSystem& owner_;
  std::unique_ptr<WritableFile> file_;
};

void ReportedFileSystem::report() {
  ++operations_;
  if (progress_ != nullptr) progress_->enter(slot_, control::Activity::storage, kSaving, operations_);
}

void ReportedFileSystem::make_directory(const std::string& path) {
  report();
  files_.make_directory(path);
}

std::unique_ptr<WritableFile> ReportedFileSystem::create(const std::string& path) {
  report();
  return std::make_unique<File>(*this, files_.create(path));
}

void ReportedFileSystem::sync_directory(const std::string& path) {
  report();
  files_.sync_directory(path);
}

void ReportedFileSystem::rename(const std::string& from, const std::string& to) {
  report();
  files_.rename(from, to);
}

void ReportedFileSystem::remove_all(const std::string& path) {
  report();
  files_.remove_all(path);
}

int64_t ReportedFileSystem::free_bytes(const std::string& path) {
  report();
  return files_.free_bytes(path);
}

}  // namespace lockstep::train
