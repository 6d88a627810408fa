#include "comm/shared/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/index.h"
#include "base/text.h"
#include "lockstep/error.h"

namespace lockstep::comm {
namespace {

/// Ranks reach this point together, after start-up; a rank that does not come is lost.
constexpr std::chrono::minutes kMeetingTimeout{5};

std::string reason_of(int error) { return std::strerror(error); }

std::string no_room_message(int64_t size_bytes, int error) {
  struct statvfs disk {};
  std::string space;
  if (statvfs("/dev/shm", &disk) == 0)
    space =
        fmt::format("; {} of {} are free",
                    human_bytes(static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize)),
                    human_bytes(static_cast<int64_t>(disk.f_blocks) * static_cast<int64_t>(disk.f_frsize)));
  return fmt::format(
      "cannot allocate {} of shared memory in /dev/shm: {}{}; make /dev/shm larger (docker run "
      "--shm-size=1g, or mount -o remount,size=1g /dev/shm)",
      human_bytes(size_bytes), reason_of(error), space);
}

/// Growing a file beyond this limit would end the process by SIGXFSZ rather than fail.
void require_file_size(int64_t size_bytes) {
  struct rlimit limit {};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      static_cast<uint64_t>(size_bytes) <= limit.rlim_cur)
    return;
  throw CommError(
      fmt::format("cannot allocate {} of shared memory in /dev/shm: the limit on the size of files is {}; "
                  "raise it (ulimit -f)",
                  human_bytes(size_bytes), human_bytes(static_cast<int64_t>(limit.rlim_cur))));
}

void allocate(int file, int64_t offset, int64_t size_bytes) {
  int error = EINTR;
  while (error == EINTR) error = posix_fallocate(file, offset, size_bytes);
  if (error != 0) throw CommError(no_room_message(size_bytes, error));
}

/// The file's name in /dev/shm, until everybody has opened it.
class Name {
 public:
  Name() : text_(fmt::format("/lockstep-{}-{:016x}", getpid(), random_bits())) {}
  ~Name() { shm_unlink(text_.c_str()); }
  Name(const Name&) = delete;
  Name& operator=(const Name&) = delete;
  const std::string& text() const { return text_; }

  static uint64_t random_bits() {
    uint64_t bits = 0;
    if (getrandom(&bits, sizeof(bits), 0) != sizeof(bits))
      throw CommError("cannot draw random bits: " + reason_of(errno));
    return bits;
  }

 private:
  std::string text_;
};

/// Tells whether a rank is a thread of this process. A process id alone would not: containers may share
/// /dev/shm, and each have a process 1.
struct ProcessToken {
  int64_t id;
  uint64_t random;
  bool operator==(const ProcessToken&) const = default;
  static ProcessToken own() {
    static const uint64_t random = Name::random_bits();
    return {getpid(), random};
  }
};

/// What rank 0 tells the others.
struct Invitation {
  std::array<char, 64> name{};  ///< empty if it failed
  ProcessToken process{};
  const std::shared_ptr<SharedSegment>* segment = nullptr;  ///< of use in the same process only
};

using Failure = std::array<char, 512>;  // "" if all is well
Failure failure_of(const std::string& what) {
  Failure failure{};
  std::copy_n(what.data(), std::min(what.size(), failure.size() - 1), failure.data());
  return failure;
}

std::shared_ptr<SharedSegment> make_file(const std::string& name, int64_t total_bytes,
                                         int64_t reserved_bytes) {
  require_file_size(total_bytes);
  const int file = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (file < 0) throw CommError(fmt::format("cannot create /dev/shm{}: {}", name, reason_of(errno)));
  try {
    if (ftruncate(file, total_bytes) != 0) throw CommError(no_room_message(total_bytes, errno));
    allocate(file, 0, reserved_bytes);
  } catch (...) {
    close(file);
    throw;
  }
  return std::make_shared<SharedSegment>(file, total_bytes);
}

std::shared_ptr<SharedSegment> open_file(const Invitation& invitation, int64_t total_bytes) {
  if (invitation.process == ProcessToken::own()) return *invitation.segment;
  const int file = shm_open(invitation.name.data(), O_RDWR | O_CLOEXEC, 0);
  if (file < 0)
    throw CommError(
        fmt::format("cannot open /dev/shm{}, which rank 0 has made: {}; ranks that share memory must run on "
                    "one host, as one user, and see one /dev/shm",
                    invitation.name.data(), reason_of(errno)));
  return std::make_shared<SharedSegment>(file, total_bytes);
}

/// COLLECTIVE: throws the first rank's failure on all ranks.
void agree(Communicator& group, device::Stream& stream, const std::string& own) {
  std::vector<Failure> failures(static_cast<size_t>(group.size()));
  nth(failures, group.rank()) = failure_of(own);
  group.all_gather(failures.data(), sizeof(Failure), stream);
  group.synchronize(stream, deadline_in(kMeetingTimeout));
  for (size_t rank = 0; rank < failures.size(); ++rank)
    if (failures[rank][0] != '\0')
      throw CommError(
          fmt::format("rank {} of the {} on this host {}", rank, group.size(), failures[rank].data()),
          ExitCode::unavailable);
}

}  // namespace

SharedSegment::SharedSegment(int file, int64_t total_bytes) : file_(file), total_bytes_(total_bytes) {
  void* const address =
      mmap(nullptr, static_cast<size_t>(total_bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (address == MAP_FAILED) {
    const int error = errno;
    close(file);
    throw CommError(
        fmt::format("cannot map {} of shared memory: {}", human_bytes(total_bytes), reason_of(error)));
  }
  data_ = static_cast<std::byte*>(address);
}

SharedSegment::~SharedSegment() {
  munmap(data_, static_cast<size_t>(total_bytes_));
  close(file_);
}

void SharedSegment::reserve(int64_t offset, int64_t size_bytes) const { allocate(file_, offset, size_bytes); }

std::shared_ptr<SharedSegment> SharedSegment::create(Communicator& group, int64_t total_bytes,
                                                     int64_t reserved_bytes) {
  const auto device = device::make_cpu_device();
  const auto stream = device->create_stream("shared memory");
  std::optional<Name> name;
  std::shared_ptr<SharedSegment> segment;
  Invitation invitation;
  std::string failure;
  const auto attempt = [&](const auto& work) {
    try {
      work();
    } catch (const CommError& error) {
      failure = error.what();
    }
  };
  if (group.rank() == 0)
    attempt([&] {
      name.emplace();
      segment = make_file(name->text(), total_bytes, reserved_bytes);
      invitation.process = ProcessToken::own();
      invitation.segment = &segment;
      std::copy(name->text().begin(), name->text().end(), invitation.name.data());
    });
  group.broadcast(&invitation, sizeof(invitation), 0, *stream);
  group.synchronize(*stream, deadline_in(kMeetingTimeout));
  if (group.rank() != 0 && invitation.name[0] != '\0')
    attempt([&] { segment = open_file(invitation, total_bytes); });
  agree(group, *stream, failure);
  return segment;  // and the name goes: everybody has the file
}

}  // namespace lockstep::comm
