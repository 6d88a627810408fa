#include "observe/machine/disk.h"

#include "base/text.h"
#include "observe/machine/text_numbers.h"

namespace lockstep::observe {

std::optional<DiskBytes> process_disk_bytes(std::string_view io) {
  const auto read = number_after(io, "read_bytes:"), written = number_after(io, "write_bytes:");
  if (!read || !written) return std::nullopt;
  return DiskBytes{.read = *read, .written = *written};
}

std::optional<DiskBytes> host_disk_bytes(std::string_view diskstats,
                                         const std::function<bool(const std::string& name)>& is_disk) {
  // major minor name, reads, reads merged, sectors read, ms, writes, writes merged, sectors written, ...
  constexpr size_t kName = 2, kRead = 5, kWritten = 9;
  constexpr double kSectorBytes = 512;  // whatever the disk's own are
  std::optional<DiskBytes> bytes;
  for (const std::string& line : split(diskstats, '\n')) {
    const auto words = words_of(line);
    if (words.size() <= kWritten || !is_disk(std::string(words[kName]))) continue;
    const auto read = number_in(words[kRead]), written = number_in(words[kWritten]);
    if (!read || !written) continue;
    if (!bytes) bytes.emplace();
    bytes->read += *read * kSectorBytes;
    bytes->written += *written * kSectorBytes;
  }
  return bytes;
}

}  // namespace lockstep::observe
