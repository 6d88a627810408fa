#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::observe {

struct DiskBytes {
  double read = 0, written = 0;
};

/// What a process has read from disks and written to them, as /proc/self/io says: not what caches had.
/// Nothing if the text is something else.
std::optional<DiskBytes> process_disk_bytes(std::string_view io);
/// What the disks of a host have read and written since its start, from the text of /proc/diskstats.
/// `is_disk`: whether a name is a disk, and neither a part of one, nor something stacked on others: those
/// would count twice. Nothing if there is no disk.
std::optional<DiskBytes> host_disk_bytes(std::string_view diskstats,
                                         const std::function<bool(const std::string& name)>& is_disk);

}  // namespace lockstep::observe
