#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "doctor/check.h"

namespace lockstep::doctor {

/// Facts about the folder of --out or, if it does not exist yet, about the nearest existing folder above it.
struct StorageFacts {
  std::string folder;
  std::string file_system;  ///< "ext4", "nfs", ...; a number if the name is not known
  int64_t free_bytes = 0;
  std::optional<int64_t> file_limit;  ///< bytes that a file may have (ulimit -f)
  int64_t written_bytes = 0;          ///< in the trial, made durable by fsync
  double written_seconds = 0;
  std::string write_problem;   ///< empty: files can be written
  std::string fsync_problem;   ///< of a file or of the folder; empty: none
  std::string rename_problem;  ///< a renamed folder is complete under its new name alone, or what is wrong
};
/// Leaves nothing behind.
StorageFacts storage_facts(const std::string& output_directory);
Finding judge_storage(const StorageFacts& facts);

std::vector<Finding> look_at_storage(const Request& request);

}  // namespace lockstep::doctor
