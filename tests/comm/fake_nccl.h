#pragma once

#include <nccl.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace lockstep::comm {

/// Stands in for NCCL, so that what is done with it can be tested without a GPU: it moves no data, writes
/// down every call but polls, and answers as it is told. One at a time; all threads use it.
class FakeNccl {
 public:
  FakeNccl();
  ~FakeNccl();  ///< lets calls that are held go, and waits for them

  /// What a call of this name answers, or of "name rank"; success where nothing is said.
  void answer(const std::string& call, ncclResult_t result);
  /// How often ncclCommGetAsyncError says that it is in progress after each call that starts something; -1:
  /// always.
  void set_polls(int polls);
  void set_async_error(ncclResult_t error);
  void set_version(int version);
  /// From now on calls of this name do not return before release().
  void hold(const std::string& call);
  void release();

  std::vector<std::string> calls() const;  ///< "ncclAllReduce 0x... 1024 float32 sum", those of rank 0 alone
  std::string last_of(int rank, const std::string& call) const;  ///< the arguments
  int count(const std::string& call) const;                      ///< how often it was called, by all ranks
  std::vector<int> ends() const;  ///< of communicators: the GPU that was the calling thread's current one

  // For the functions themselves.
  ncclResult_t note(int rank, const std::string& call, const std::string& arguments = "");
  ncclResult_t poll(ncclResult_t& state);
  int version() const;
  void note_end(int gpu);

 private:
  mutable std::mutex mutex_;
  std::map<std::string, ncclResult_t> answers_;
  std::map<std::string, int> counts_;
  std::map<std::pair<int, std::string>, std::string> last_;
  std::vector<std::string> calls_;
  std::condition_variable changed_;
  std::set<std::string> held_;
  std::vector<int> ends_;
  int inside_ = 0;  // calls that are held
  int polls_ = 0, left_ = 0, version_ = NCCL_VERSION_CODE;
  ncclResult_t async_error_ = ncclSuccess;
};

}  // namespace lockstep::comm
