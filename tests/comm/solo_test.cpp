#include "comm/conformance.h"
#include "comm/conformance_support.h"

namespace lockstep::comm {
namespace {

class Solo : public testing::TestWithParam<ConformanceCheck> {};

TEST_P(Solo, Conforms) { GetParam().run(*make_solo_communicator()); }

INSTANTIATE_TEST_SUITE_P(Checks, Solo,
                         testing::ValuesIn(conformance_checks().begin(), conformance_checks().end()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lockstep::comm
