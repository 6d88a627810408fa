#include "comm/host_communicator.h"
#include "comm/local/post_office.h"

namespace lockstep::comm {
namespace {

/// A group of one: in place, every collective is its own result.
class SoloCommunicator : public HostCommunicator {
 public:
  explicit SoloCommunicator(std::string name)
      : HostCommunicator(std::move(name), 0, 1, std::make_shared<Death>()) {}

  std::string_view backend() const override { return "solo"; }
  bool sums_along_tree() const override { return true; }
  std::unique_ptr<Communicator> split(int color, int) override {
    check_alive();
    if (color < 0) return nullptr;
    return std::make_unique<SoloCommunicator>(name() + "/" + std::to_string(color));
  }
  std::unique_ptr<MessagePort> open_port() override {
    check_alive();
    return make_local_port(std::make_shared<PostOffice>(name(), 1), 0);
  }
  void synchronize(device::Stream&, Deadline) override { check_alive(); }

 protected:
  void start(Operation) override {}
  int64_t outstanding() override {
    check_alive();
    return 0;
  }
};

}  // namespace

std::unique_ptr<Communicator> make_solo_communicator() { return std::make_unique<SoloCommunicator>("world"); }

}  // namespace lockstep::comm
