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
  int peer;            ///< rank in the communicator; a rank may not name itself
  void* data;          ///< REQUIRES for send: unchanged until the operation is complete
  int64_t size_bytes;  ///< both sides state the same size, or a CommError results where the backend can tell
};

/// Bytes that one rank's transfers have moved, headers not counted.
struct TransferredBytes {
  int64_t sent = 0, received = 0;
  bool operator==(const TransferredBytes&) const = default;
};

/// Names one operation of a communicator: they are numbered from 1 on, in the order in which they are
/// started. 0 stands for none, which is complete.
struct Ticket {
  int64_t number = 0;
  bool operator==(const Ticket&) const = default;
};

class MessagePort;

/// A group of processes (or threads) that exchange data in one agreed order.
///
/// Every operation only *starts*: it returns at once, with a ticket, and is complete when poll() of the
/// ticket or test() returns true, or synchronize() returns. Operations of one communicator complete in the
/// order in which they were started: whoever wants to know which of several peers has come first has a
/// communicator with each of them. Buffers belong to the operation until then.
///
/// On host memory, operations never touch `stream`. Where follows_stream(), buffers are memory of a device,
/// and an operation is work of `stream`: it sees what the stream and the communicator held before it, and
/// what the stream is given afterwards sees its result. A stream outlives the operations on it.
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
  /// COLLECTIVE over `members` alone (ranks, ascending, this one among them): blocks. A communicator of them,
  /// in this order, which needs nothing of the others: they may be lost. Throws InternalError on backends
  /// that can make none.
  virtual std::unique_ptr<Communicator> regroup(std::span<const int> members);
  /// COLLECTIVE: blocks. A port between the same ranks, on host memory. Throws InternalError on backends that
  /// have none.
  virtual std::unique_ptr<MessagePort> open_port();

  /// In place over `count` elements of float32, float64 or int32, where follows_stream() also of bfloat16 or
  /// float16 ("dtype not supported" is a CommError elsewhere). The order of summation is the library's own,
  /// unless sums_along_tree().
  virtual Ticket all_reduce(void* data, int64_t count, DType dtype, ReduceOp op, device::Stream& stream) = 0;
  /// Whether all_reduce adds along the canonical tree over the ranks, split at the largest power of two below
  /// their number: then its bits depend on nothing else.
  virtual bool sums_along_tree() const { return false; }
  /// `data` holds size() blocks of `count` elements; afterwards block rank() holds the reduction, the others
  /// are unspecified.
  virtual Ticket reduce_scatter(void* data, int64_t count, DType dtype, ReduceOp op,
                                device::Stream& stream) = 0;
  /// `data` holds size() blocks of `block_bytes`; block rank() is this rank's contribution, the others are
  /// filled.
  virtual Ticket all_gather(void* data, int64_t block_bytes, device::Stream& stream) = 0;
  virtual Ticket broadcast(void* data, int64_t size_bytes, int root, device::Stream& stream) = 0;
  /// All transfers start together. Matching is first-in first-out per pair of ranks and direction. No
  /// transfer may rely on another one being buffered: the exchange completes when every partner has reached
  /// its own.
  virtual Ticket exchange(std::span<const Transfer> transfers, device::Stream& stream) = 0;
  virtual Ticket barrier(device::Stream& stream) = 0;
  /// Of all exchanges that were started so far; what a collective moves is its backend's affair.
  virtual TransferredBytes transferred() const { return {}; }

  /// Whether operations are enqueued on their stream and complete in its order: then events order them, and
  /// nobody has to wait for them on the host, which may have a part in them, though (check_health()).
  virtual bool follows_stream() const { return false; }
  /// Whether operations that follow a stream get on only while the host calls check_health().
  virtual bool needs_host() const { return false; }
  /// Throws CommError if the library has noticed, in the background, that something is wrong, and does
  /// what the host has to do for operations that follow streams. For whoever waits on the host for streams.
  virtual void check_health() {}

  /// Makes progress without blocking; true when this operation is complete, and so all that were started
  /// before it. REQUIRES: the ticket is of this communicator, or kEverything.
  virtual bool poll(Ticket operation) = 0;
  /// Likewise for all that was started so far.
  bool test() { return poll(kEverything); }
  static constexpr Ticket kEverything{std::numeric_limits<int64_t>::max()};
  /// Blocks (polling, and giving up its core between polls) until everything started is complete; throws
  /// CommError naming the operation, the rank and the time waited once `deadline` has passed.
  virtual void synchronize(device::Stream& stream, Deadline deadline) = 0;
  /// Marks the communicator dead on every rank that the backend can reach (local: all; mpi and nccl: this
  /// one, the others learn of it from the control plane): their pending and later operations throw CommError
  /// with `reason`. Never throws. Returns at once, but nccl's once NCCL uses neither streams nor memory any
  /// more, or after five seconds with a warning.
  virtual void abort(std::string_view reason) noexcept = 0;
};

/// Aborts all of them (null: none) at the same time: one of nccl's may have to wait for the end of another's
/// kernels.
void abort_all(std::span<Communicator* const> communicators, std::string_view reason) noexcept;

/// The one-process backend: every operation is complete at once.
std::unique_ptr<Communicator> make_solo_communicator();

/// Communicators for `size` threads of this process, for tests: element r belongs to rank r's thread.
std::vector<std::unique_ptr<Communicator>> make_local_communicators(int size);

struct SharedMemoryOptions {
  int64_t chunk_bytes =
      0;  ///< of what is copied and added at once; 0: what fits the cache. Tests make it small
};
/// COLLECTIVE over `group`, whose ranks are all on this host (any backend): a communicator of the same ranks
/// through memory that they share. Sums along the canonical tree. `group` must outlive it; only split() and
/// the start use it. Throws CommError on all ranks where the memory cannot be had (how much, where, what to
/// do).
std::unique_ptr<Communicator> make_shared_memory_communicator(Communicator& group,
                                                              const SharedMemoryOptions& options = {});

/// How the library may sum where its order is its own. Counts for all of the process, as its first
/// communicator has it, and only where the user has not set NCCL_ALGO.
enum class GpuAlgorithm { automatic, ring, tree };

/// Ranks of a communicator with which one of them exchanges messages. REQUIRES: whoever is sent to receives.
struct ExchangePartners {
  std::vector<int> send, receive;
};

struct GpuCommunicatorOptions {
  GpuAlgorithm algorithm = GpuAlgorithm::automatic;
  std::chrono::milliseconds start_timeout = std::chrono::minutes(2);
  /// Connected at the start; the first exchange between others waits, on the host, for both. Absent: ranks
  /// whose distance is a power of two.
  std::optional<ExchangePartners> partners;
  /// This rank does nothing else with it than to exchange messages. If that is so for all ranks, the library
  /// takes less of the GPU for it.
  bool only_exchanges = false;
};
/// COLLECTIVE over `bootstrap` (any host backend; it need not outlive the result): a communicator of the same
/// ranks for memory of `device`, which outlives it. Making, splitting and destroying one may wait for all
/// work of the GPU; a split has its communicator's options but for `partners`. Throws CommError on all ranks
/// where any of them fails, DeviceError if the program is linked to no GPU backend. REQUIRES:
/// device.kind() is cuda, and the device is current on this thread.
std::unique_ptr<Communicator> make_gpu_communicator(Communicator& bootstrap, device::Device& device,
                                                    const GpuCommunicatorOptions& options = {});
/// Likewise, of memory of a device that the host does not share, carried by `host` (any host backend), whose
/// other ranks may use it as it is: not collective. Bytes pass through pinned memory: `staging_bytes` of the
/// largest operation; for a larger one more, for which a GPU may wait for all of its work. Operations follow
/// their streams, and get on only while this host calls check_health(), poll() or synchronize().
std::unique_ptr<Communicator> make_staged_communicator(std::unique_ptr<Communicator> host,
                                                       device::Device& device, int64_t staging_bytes = 0);
/// Staging of an exchange of transfers of these sizes; that of other operations is as large as their data.
int64_t staging_of_exchange(std::span<const int64_t> sizes);
/// Pinned memory that such a communicator takes beside its staging.
inline constexpr int64_t kStagedWordBytes = 8;
/// What communicators of GPUs are made of, with its version: "nccl=2.28.9"; empty without a backend. All
/// ranks need the same.
std::string gpu_communication_library();

/// Owns MPI's initialisation. Made once, in main's frame; destroyed last. `make_mpi_environment` works
/// without mpirun too (then the world is one process).
class MpiEnvironment {
 public:
  virtual ~MpiEnvironment() = default;
  virtual std::unique_ptr<Communicator> world() = 0;  ///< COLLECTIVE: a fresh duplicate of the world
  /// COLLECTIVE: barrier and MPI_Finalize; after it no communicator may be used. Without it, destruction
  /// finalizes nothing and the process must leave by abort_job.
  /// Throws CommError if the others do not come within a minute; then only abort_job is left.
  virtual void finish() = 0;
  /// Ends the whole job with `code`; does not return.
  [[noreturn]] virtual void abort_job(int code) noexcept = 0;
};
std::unique_ptr<MpiEnvironment> make_mpi_environment();
/// Whether this process was started by mpirun or srun (so that MPI must be initialised).
bool started_by_mpi_launcher();

}  // namespace lockstep::comm
