#include <fmt/format.h>
#include <mpi.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "base/ensure.h"
#include "comm/communicator.h"
#include "comm/mpi/check.h"
#include "comm/mpi/message_limits.h"
#include "comm/mpi/mpi_communicator.h"
#include "lockstep/error.h"

namespace lockstep::comm {
namespace {

/// All ranks end within moments of each other; rank 0 may still be writing its report.
constexpr std::chrono::seconds kFinishTimeout{60};

class Environment : public MpiEnvironment {
 public:
  Environment() {
    int initialized = 0, level = 0;
    check_mpi(MPI_Initialized(&initialized));
    ensure(initialized == 0, "MPI is initialised twice");
    // What TCP sends at once, without a handshake: messages between hosts pass in such pieces (MessageRules).
    // Larger ones would be no faster, and what is copied on arrival should fit a core's cache. Messages that
    // are longer all the same Open MPI puts on the wire in one piece, behind which everything else between
    // the two hosts waits, unless it is told to send them in fragments. Other libraries do not know the
    // names, and what the user says counts.
    ::setenv("OMPI_MCA_btl_tcp_eager_limit", "132096", /*overwrite=*/0);
    ::setenv("OMPI_MCA_btl_tcp_rdma_pipeline_frag_size", "131072", /*overwrite=*/0);
    // Each lane of a step program has a communicator and, if cores are spare, a thread of its own.
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level));
    if (level < MPI_THREAD_MULTIPLE)
      throw DeviceError(
          fmt::format("this MPI library supports only thread level {}, but lockstep needs {} "
                      "(MPI_THREAD_MULTIPLE); use an MPI that was built with thread support",
                      level, MPI_THREAD_MULTIPLE));
    // Calls without a communicator of ours, such as making a datatype, report errors through the world's
    // handler.
    check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    eager_bytes_ = eager_bytes_of_tcp(MPI_COMM_WORLD);
    hosts_ = hosts_by_rank(MPI_COMM_WORLD);
  }

  std::unique_ptr<Communicator> world() override { return world_with({}); }

  std::unique_ptr<Communicator> world_with(const MessageLimits& limits) const {
    MPI_Comm copy = MPI_COMM_NULL;
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &copy));
    MessageRules rules{.piece_bytes = eager_bytes_, .hosts = hosts_};
    if (limits.largest_count > 0) rules.largest_count = limits.largest_count;
    if (limits.piece_bytes > 0) {
      rules.piece_bytes = limits.piece_bytes;
      std::iota(rules.hosts.begin(), rules.hosts.end(), 0);
    }
    return std::make_unique<MpiCommunicator>(copy, "world", std::move(rules));
  }

  void finish() override {
    MPI_Request request;
    check_mpi(MPI_Ibarrier(MPI_COMM_WORLD, &request));
    const Deadline deadline = deadline_in(kFinishTimeout);
    for (int done = 0; done == 0;) {
      check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
      if (done == 0 && Clock::now() > deadline)
        throw CommError(fmt::format("other ranks did not reach the end of the job within {} s of this one",
                                    kFinishTimeout.count()),
                        ExitCode::hang);
      if (done == 0) sched_yield();
    }
    check_mpi(MPI_Finalize());
  }

  void abort_job(int code) noexcept override {
    MPI_Abort(MPI_COMM_WORLD, code);
    _exit(code);  // MPI_Abort is only "best effort"
  }

 private:
  int64_t eager_bytes_ = 0;
  std::vector<int> hosts_;  // by rank of the world
};

}  // namespace

std::unique_ptr<MpiEnvironment> make_mpi_environment() { return std::make_unique<Environment>(); }

std::unique_ptr<Communicator> make_world_with(MpiEnvironment& environment, const MessageLimits& limits) {
  return dynamic_cast<Environment&>(environment).world_with(limits);
}

bool started_by_mpi_launcher() {
  // Open MPI's mpirun; srun --mpi=pmix and any PMIx launcher; Hydra and srun --mpi=pmi2. SLURM_* alone does
  // not tell: it is set in a batch script's shell, too.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"})
    if (std::getenv(name) != nullptr) return true;
  return false;
}

}  // namespace lockstep::comm
