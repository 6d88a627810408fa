#pragma once

#include <memory>
#include <string>
#include <utility>

#include "data/data_options.h"
#include "data/found_damage.h"
#include "lockstep/error.h"

namespace lockstep::data {

/// Damage that is in the list of `DataOptions::found` already.
class ListedDamage : public DataError {
 public:
  using DataError::DataError;
};

/// Opens files that are read as a whole. Damage of one ends the opening; but if damage is looked for
/// (`found`), it is listed, and the others are opened, too.
class FileAttempts {
 public:
  explicit FileAttempts(const DataOptions& options) : FileAttempts(options.found) {}
  explicit FileAttempts(std::shared_ptr<FoundDamage> found) : found_(std::move(found)) {}

  bool looks_for_damage() const { return found_ != nullptr; }
  /// Calls `open`, which opens the file or reads a part of it. Returns whether it was whole. Throws what
  /// `open` throws, save DataError if damage is looked for.
  template <class Open>
  bool operator()(const std::string& path, Open&& open) {
    if (!found_) {
      open();
      return true;
    }
    try {
      open();
      return true;
    } catch (const ListedDamage&) {
      is_damaged_ = true;
    } catch (const DataError& error) {
      is_damaged_ = true;
      found_->add({.file = path, .sample = -1, .byte = -1, .what = error.what()});
    }
    return false;
  }
  /// Throws ListedDamage if a file was damaged.
  void finish() const {
    if (is_damaged_) throw ListedDamage("files are damaged");
  }

 private:
  std::shared_ptr<FoundDamage> found_;
  bool is_damaged_ = false;
};

}  // namespace lockstep::data
