#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "comm/stream_communicator.h"

namespace lockstep::comm {

/// Exchanges device memory by messages between hosts. An operation's bytes are copied to pinned host memory,
/// travel as `host` carries them, and are copied back; the stream waits for a word that the host writes in
/// between. So the host has a part in each operation: operations make progress while it calls poll(),
/// synchronize() or check_health(), and stand still while it waits for a stream in another way.
///
/// Operations take turns with two halves of pinned memory, so that copies and messages overlap:
///
///     sends     stream   copy 1     copy 2     -------    copy 3
///               host                message 1  message 2
///     receives  host     message 1  message 2
///               stream   -------    copy 1     copy 2
///
/// - A stream passes an exchange that only sends once its bytes are copied, and waits for the message before
///   it copies to that half again. The operation is complete when the message is (poll()).
/// - Messages of an exchange that only receives may arrive before its stream gets there, in the half that the
///   exchange before the last has left.
class StagedCommunicator : public StreamCommunicator {
 public:
  /// `host`: a communicator of the same ranks on host memory, which only this one uses. `staging_bytes`:
  /// pinned memory, twice that of the largest operation (staging_of). A larger operation allocates more, for
  /// which a GPU may wait for all of its work.
  StagedCommunicator(std::unique_ptr<Communicator> host, device::Device& device, int64_t staging_bytes,
                     std::string name);
  ~StagedCommunicator() override;

  std::string_view backend() const override { return "staged"; }
  std::unique_ptr<Communicator> split(int color, int key) override;
  bool needs_host() const override { return true; }
  void check_health() override;

 private:
  /// An operation on pinned memory, which the host starts when the device has copied its part there, or has
  /// left the half for which there is nothing to copy.
  struct Waiting {
    int64_t number;
    Operation operation;
    std::unique_ptr<device::Event> arrived;  ///< null: there is nothing to wait for
    std::vector<std::byte> wide;             ///< of reductions of narrow types: the elements in float32
    Ticket ticket{};
    bool started = false;
  };

  /// Half of the pinned memory.
  struct Half {
    std::byte* data = nullptr;
    int64_t number = 0;                   ///< of the operation that used it last
    bool only_sends = false;              ///< that one: its stream has not waited for its messages
    std::unique_ptr<device::Event> left;  ///< that one's stream is done with it; null if none has used it
  };

  void issue(const Operation& operation, device::Stream& stream) override;
  bool is_complete_behind(int64_t number) const override { return number <= completed_; }
  void advance() override;
  void die(std::string_view reason, ExitCode code) noexcept override;
  int64_t bytes_of(const Operation& operation) const;
  void make_room(int64_t bytes);
  std::unique_ptr<device::Event> record(device::Stream& stream);
  Operation stage(const Operation& operation, const Half& half, device::Stream& stream);
  void unstage(const Operation& operation, const Operation& staged, device::Stream& stream) const;
  bool can_start(const Waiting& waiting, bool is_first) const;
  void complete_all();
  bool sends_the_rest() noexcept;
  void drain() noexcept;
  void progress();
  void start(Waiting& waiting);
  void finish(Waiting& waiting);

  std::unique_ptr<Communicator> host_;
  std::unique_ptr<device::Device> cpu_;
  std::unique_ptr<device::Stream> host_stream_;  ///< host communicators do not touch it
  std::deque<Waiting> waiting_;
  std::vector<std::unique_ptr<device::Event>> spare_;
  device::Buffer staging_;
  std::array<Half, 2> halves_;            ///< of staging_
  std::vector<device::Buffer> outgrown_;  ///< which streams may still use
  device::Buffer word_memory_;
  std::atomic<uint64_t>* word_;  ///< in word_memory_: the number of the last operation that is complete
  int64_t issued_ = 0, completed_ = 0;
  device::Stream* last_stream_ = nullptr;  ///< of the operation that was issued last
};

}  // namespace lockstep::comm
