#include "comm/fake_nccl.h"

#include <fmt/format.h>

#include <memory>

namespace lockstep::comm {
namespace {

FakeNccl* current = nullptr;
thread_local int current_gpu = 0;

std::string nccl_name(ncclDataType_t type) {
  const std::map<ncclDataType_t, std::string> names{{ncclFloat32, "float32"},   {ncclFloat64, "float64"},
                                                    {ncclInt32, "int32"},       {ncclUint8, "uint8"},
                                                    {ncclBfloat16, "bfloat16"}, {ncclFloat16, "float16"}};
  return names.at(type);
}

std::string nccl_name(ncclRedOp_t op) {
  return op == ncclSum ? "sum" : op == ncclMax ? "max" : op == ncclMin ? "min" : "?";
}

}  // namespace

FakeNccl::FakeNccl() { current = this; }
FakeNccl::~FakeNccl() {
  std::unique_lock lock(mutex_);
  held_.clear();
  changed_.notify_all();
  changed_.wait(lock, [&] { return inside_ == 0; });
  current = nullptr;
}

void FakeNccl::hold(const std::string& call) {
  std::lock_guard lock(mutex_);
  held_.insert(call);
}

void FakeNccl::release() {
  std::lock_guard lock(mutex_);
  held_.clear();
  changed_.notify_all();
}

void FakeNccl::answer(const std::string& call, ncclResult_t result) {
  std::lock_guard lock(mutex_);
  answers_[call] = result;
}

void FakeNccl::set_polls(int polls) {
  std::lock_guard lock(mutex_);
  polls_ = left_ = polls;
}

void FakeNccl::set_async_error(ncclResult_t error) {
  std::lock_guard lock(mutex_);
  async_error_ = error;
}

void FakeNccl::set_version(int version) {
  std::lock_guard lock(mutex_);
  version_ = version;
}

std::vector<std::string> FakeNccl::calls() const {
  std::lock_guard lock(mutex_);
  return calls_;
}

std::string FakeNccl::last_of(int rank, const std::string& call) const {
  std::lock_guard lock(mutex_);
  return last_.at({rank, call});
}

int FakeNccl::count(const std::string& call) const {
  std::lock_guard lock(mutex_);
  const auto found = counts_.find(call);
  return found == counts_.end() ? 0 : found->second;
}

ncclResult_t FakeNccl::note(int rank, const std::string& call, const std::string& arguments) {
  std::unique_lock lock(mutex_);
  ++counts_[call];
  if (rank == 0) calls_.push_back(arguments.empty() ? call : call + " " + arguments);
  last_[{rank, call}] = arguments;
  left_ = polls_;
  ++inside_;
  changed_.wait(lock, [&] { return !held_.contains(call); });
  --inside_;
  changed_.notify_all();
  auto found = answers_.find(fmt::format("{} {}", call, rank));
  if (found == answers_.end()) found = answers_.find(call);
  return found == answers_.end() ? ncclSuccess : found->second;
}

std::vector<int> FakeNccl::ends() const {
  std::lock_guard lock(mutex_);
  return ends_;
}

void FakeNccl::note_end(int gpu) {
  std::lock_guard lock(mutex_);
  ends_.push_back(gpu);
}

ncclResult_t FakeNccl::poll(ncclResult_t& state) {
  std::lock_guard lock(mutex_);
  state = async_error_ != ncclSuccess ? async_error_ : left_ == 0 ? ncclSuccess : ncclInProgress;
  if (left_ > 0) --left_;
  return ncclSuccess;
}

int FakeNccl::version() const {
  std::lock_guard lock(mutex_);
  return version_;
}

}  // namespace lockstep::comm

using lockstep::comm::current;
using lockstep::comm::current_gpu;
using lockstep::comm::nccl_name;

struct ncclComm {
  int rank;
};

// What the communicator uses of NCCL.
extern "C" {

cudaError_t cudaGetDevice(int* gpu) {
  *gpu = current_gpu;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int gpu) {
  current_gpu = gpu;
  return cudaSuccess;
}

ncclResult_t ncclGetVersion(int* version) {
  *version = current->version();
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  id->internal[0] = 'i';
  return current->note(0, "ncclGetUniqueId");
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  *comm = new ncclComm{rank};
  const std::string most =
      config->maxCTAs == NCCL_CONFIG_UNDEF_INT ? "" : fmt::format(", at most {} CTAs", config->maxCTAs);
  return current->note(
      rank, "ncclCommInitRankConfig",
      fmt::format("{} of {}, id {}, blocking {}{}", rank, size, id.internal[0], config->blocking, most));
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) { return current->poll(*state); }
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited" : "system error";
}
const char* ncclGetLastError(ncclComm_t) { return "the fake's own words"; }

// An aborted or destroyed communicator is freed: who uses it afterwards is caught by a sanitizer.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const std::unique_ptr<ncclComm> owned(comm);
  current->note_end(current_gpu);
  return current->note(comm->rank, "ncclCommAbort");
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) { return current->note(comm->rank, "ncclCommFinalize"); }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const std::unique_ptr<ncclComm> owned(comm);
  current->note_end(current_gpu);
  return current->note(comm->rank, "ncclCommDestroy");
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t) {
  return current->note(comm->rank, "ncclAllReduce",
                       fmt::format("{} {} {} {} {}", from, to, count, nccl_name(type), nccl_name(op)));
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t) {
  return current->note(comm->rank, "ncclAllGather",
                       fmt::format("{} {} {} {}", from, to, count, nccl_name(type)));
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t) {
  return current->note(comm->rank, "ncclBroadcast",
                       fmt::format("{} {} {} {} {}", from, to, count, nccl_name(type), root));
}
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t) {
  return current->note(comm->rank, "ncclSend",
                       fmt::format("{} {} {} {}", from, count, nccl_name(type), peer));
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t) {
  return current->note(comm->rank, "ncclRecv", fmt::format("{} {} {} {}", to, count, nccl_name(type), peer));
}
ncclResult_t ncclGroupStart() { return current->note(0, "ncclGroupStart"); }
ncclResult_t ncclGroupEnd() { return current->note(0, "ncclGroupEnd"); }

}  // extern "C"
