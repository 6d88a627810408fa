#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "device/device.h"
#include "lockstep/tensor.h"

namespace lockstep::comm {

enum class ReduceOp { sum, max, min };

/// One direction of a point-to-point transfer of raw bytes. Zero bytes are allowed and still match.
struct Transfer {
  enum class Direction { send, receive } direction;
  int peer;    ///< rank in the communicator; a rank may not name itself
  void* data;  ///< REQUIRES for send: unchanged until the operation is complete
  int64_t
      size_bytes;  ///< both sides state the same size; otherwise a CommError, if the backend can detect it
};

/// Bytes that one rank's transfers have moved, without headers.
struct TransferredBytes {
  int64_t sent = 0, received = 0;
  bool operator==(const TransferredBytes&) const = default;
};

/// The number of an operation of a communicator, from 1, in the order in which operations are started. 0
/// stands for no operation, which counts as complete.
struct Ticket {
  int64_t number = 0;
  bool operator==(const Ticket&) const = default;
};

class MessagePort;

/// A group of processes (or threads) that exchange data in one agreed order.
///
/// Every operation only *starts*: it returns at once, with a ticket. It is complete when poll() of the ticket
/// or test() returns true, or synchronize() returns. Until then buffers belong to the operation. Operations
/// of one communicator complete in the order in which they were started. To learn which of several peers
/// comes first, use a communicator with each of them.
///
/// On host memory, operations never use `stream`. If follows_stream(), buffers are device memory, and an
/// operation is work of `stream`: it sees the results of earlier work of the stream and the communicator, and
/// later work of the stream sees its result. A stream outlives the operations on it.
///
/// COLLECTIVE: all ranks call the same operations with matching sizes in the same order. Counts may be 0.
/// Thread-safety: one thread at a time per communicator, except abort(), which any thread may call; different
/// communicators may be used from different threads.
/// Errors: CommError, after which the communicator is dead and only abort() and destruction are allowed.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view backend() const = 0;

  /// COLLECTIVE: blocks. Ranks with equal `color` form a new communicator, ordered by `key`, then by old
  /// rank; a negative color gives null. Traffic of different communicators never mixes.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;
  /// COLLECTIVE over `members` only (ranks, ascending, including this one): blocks. Returns a communicator of
  /// them, in this order, which does not depend on other ranks: they may be lost. Throws InternalError if the
  /// backend does not support it.
  virtual std::unique_ptr<Communicator> regroup(std::span<const int> members);
  /// COLLECTIVE: blocks. Returns a port between the same ranks, on host memory. Throws InternalError if the
  /// backend does not support it.
  virtual std::unique_ptr<MessagePort> open_port();

  /// In place over `count` elements of float32, float64 or int32; if follows_stream() or sums_along_tree(),
  /// also of bfloat16 or float16 (otherwise a CommError "dtype not supported"). The library chooses the order
  /// of summation, unless sums_along_tree(); then every sum of two is rounded to the type.
  virtual Ticket all_reduce(void* data, int64_t count, DType dtype, ReduceOp op, device::Stream& stream) = 0;
  /// Whether all_reduce adds along the canonical tree over the ranks, split at the largest power of two below
  /// their number: then its bits depend on nothing else.
  virtual bool sums_along_tree() const { return false; }
  /// `data` holds size() blocks of `block_bytes`; block rank() is this rank's contribution, the others are
  /// filled.
  virtual Ticket all_gather(void* data, int64_t block_bytes, device::Stream& stream) = 0;
  virtual Ticket broadcast(void* data, int64_t size_bytes, int root, device::Stream& stream) = 0;
  /// All transfers start together. Matching is first-in first-out per pair of ranks and direction. No
  /// transfer may rely on another one being buffered: the exchange completes when every partner has reached
  /// its own.
  virtual Ticket exchange(std::span<const Transfer> transfers, device::Stream& stream) = 0;
  virtual Ticket barrier(device::Stream& stream) = 0;
  /// Bytes of all exchanges that were started so far; collectives do not count.
  virtual TransferredBytes transferred() const { return {}; }

  /// Whether operations are enqueued on their stream and complete in its order. Then events order them, and
  /// the host need not wait for them, but it may have a part in them (check_health()).
  virtual bool follows_stream() const { return false; }
  /// Whether operations that follow a stream make progress only while the host calls check_health().
  virtual bool needs_host() const { return false; }
  /// Throws CommError if the library has found an error in the background. Does the host's part of operations
  /// that follow streams. Call it while the host waits for streams.
  virtual void check_health() {}

  /// Makes progress without blocking. True when this operation, and so all earlier ones, are complete.
  /// REQUIRES: the ticket is of this communicator, or kEverything.
  virtual bool poll(Ticket operation) = 0;
  /// The same for all operations started so far.
  bool test() { return poll(kEverything); }
  static constexpr Ticket kEverything{std::numeric_limits<int64_t>::max()};
  /// Blocks until all started operations are complete; it polls, and yields its core between polls. After
  /// `deadline` it throws CommError, which names the operation, the rank and the time waited.
  virtual void synchronize(device::Stream& stream, Deadline deadline) = 0;
  /// Marks the communicator dead on every rank that the backend can reach (local: all; mpi and nccl: only
  /// this one; the control plane tells the others). Pending and later operations then throw CommError with
  /// `reason`. Never throws. Returns at once; nccl's returns once NCCL uses neither streams nor memory any
  /// more, or after five seconds with a warning.
  virtual void abort(std::string_view reason) noexcept = 0;
};

/// Aborts all of them (null is allowed) at the same time, because one of nccl's may have to wait for the end
/// of another's kernels.
void abort_all(std::span<Communicator* const> communicators, std::string_view reason) noexcept;

/// The one-process backend: every operation is complete at once.
std::unique_ptr<Communicator> make_solo_communicator();

/// Communicators for `size` threads of this process, for tests: element r belongs to rank r's thread.
std::vector<std::unique_ptr<Communicator>> make_local_communicators(int size);

struct SharedMemoryOptions {
  int64_t chunk_bytes =
      0;  ///< bytes that are copied and added at once; 0: as fits the cache. Tests use small values
};
/// COLLECTIVE over `group`, whose ranks are all on this host (any backend): makes a communicator of the same
/// ranks through shared memory. It sums along the canonical tree. `group` must outlive it; only split() and
/// the start use it. Throws CommError on all ranks if the memory cannot be allocated (how much, where, what
/// to do).
std::unique_ptr<Communicator> make_shared_memory_communicator(Communicator& group,
                                                              const SharedMemoryOptions& options = {});

/// How the library sums if it chooses the order. The choice of the first communicator holds for the whole
/// process, and only if the user has not set NCCL_ALGO.
enum class GpuAlgorithm { automatic, ring, tree };

/// The ranks of a communicator with which one rank exchanges messages. REQUIRES: every send has a receive at
/// its peer.
struct ExchangePartners {
  std::vector<int> send, receive;
};

struct GpuCommunicatorOptions {
  GpuAlgorithm algorithm = GpuAlgorithm::automatic;
  std::chrono::milliseconds start_timeout = std::chrono::minutes(2);
  /// Peers that are connected at the start. The first exchange between other ranks waits for both on the
  /// host. Absent: ranks whose distance is a power of two.
  std::optional<ExchangePartners> partners;
  /// This rank only exchanges messages by it. If all ranks do so, the library uses less of the GPU.
  bool only_exchanges = false;
};
/// COLLECTIVE over `bootstrap` (any host backend; it need not outlive the result): makes a communicator of
/// the same ranks for memory of `device`, which outlives it. Making, splitting and destroying it may wait for
/// all work of the GPU. A split has the same options except `partners`. Throws CommError on all ranks if any
/// of them fails, DeviceError if the program is linked to no GPU backend. REQUIRES: device.kind() is cuda,
/// and the device is current on this thread.
std::unique_ptr<Communicator> make_gpu_communicator(Communicator& bootstrap, device::Device& device,
                                                    const GpuCommunicatorOptions& options = {});
/// The same for memory of a device that the host does not share, carried by `host` (any host backend). Not
/// collective: other ranks may use `host` directly. Bytes pass through `staging_bytes` of pinned memory, as
/// staging_of() says of the largest operation. A larger one allocates more, for which a GPU may wait for all
/// of its work. Operations follow their streams, and make progress only while this host calls check_health(),
/// poll() or synchronize(). A stream may pass an exchange that only sends before its messages have left:
/// whoever goes on to something else polls until the operation is complete.
std::unique_ptr<Communicator> make_staged_communicator(std::unique_ptr<Communicator> host,
                                                       device::Device& device, int64_t staging_bytes = 0);
/// Staging bytes if no operation needs more than these: operations take turns with two halves.
int64_t staging_of(int64_t operation_bytes);
/// Bytes that an exchange with transfers of these sizes needs. Other operations need as much as their data.
int64_t staging_of_exchange(std::span<const int64_t> sizes);
/// Pinned memory that such a communicator needs besides its staging.
inline constexpr int64_t kStagedWordBytes = 8;
/// The library of GPU communicators, with its version: "nccl=2.28.9"; empty without a backend. All ranks need
/// the same.
std::string gpu_communication_library();

/// Owns MPI's initialisation. Made once, in main's frame; destroyed last. `make_mpi_environment` also works
/// without mpirun; then the world is one process.
class MpiEnvironment {
 public:
  virtual ~MpiEnvironment() = default;
  virtual std::unique_ptr<Communicator> world() = 0;  ///< COLLECTIVE: a fresh duplicate of the world
  /// COLLECTIVE: barrier and MPI_Finalize; afterwards no communicator may be used. Without it, destruction
  /// finalizes nothing, and the process must leave by abort_job. Throws CommError if the other ranks do not
  /// come within a minute; then only abort_job is possible.
  virtual void finish() = 0;
  /// Ends the whole job with `code`; does not return.
  [[noreturn]] virtual void abort_job(int code) noexcept = 0;
};
std::unique_ptr<MpiEnvironment> make_mpi_environment();
/// Whether this process was started by mpirun or srun (so that MPI must be initialised).
bool started_by_mpi_launcher();

}  // namespace lockstep::comm
