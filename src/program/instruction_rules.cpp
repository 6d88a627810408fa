#include "program/instruction_rules.h"

#include <fmt/format.h>

#include <array>

#include "base/index.h"
#include "base/text.h"

namespace lockstep::program {
namespace {

constexpr unsigned bit(Access access) { return 1u << static_cast<unsigned>(access); }
constexpr unsigned bit(LaneKind lane) { return 1u << static_cast<unsigned>(lane); }

constexpr unsigned R = bit(Access::read), W = bit(Access::write), RW = bit(Access::read_write);
constexpr unsigned kCompute = bit(LaneKind::compute), kCopy = bit(LaneKind::copy),
                   kComm = bit(LaneKind::comm), kServer = bit(LaneKind::server);
constexpr int kAny = 1 << 20;

constexpr RoleRule kConstants[] = {{Role::constants, W, 1, 1}};
constexpr RoleRule kLoad[] = {{Role::batch, W, 1, kAny}, {Role::temporary, W, 0, 1}};
constexpr RoleRule kForward[] = {{Role::input, R, 0, kAny},    {Role::parameters, R, 0, kAny},
                                 {Role::constants, R, 0, 1},   {Role::output, W, 0, kAny},
                                 {Role::stash, W, 0, kAny},    {Role::metrics, W | RW, 0, 1},
                                 {Role::temporary, W, 0, kAny}};
constexpr RoleRule kRecompute[] = {{Role::input, R, 0, kAny},     {Role::parameters, R, 0, kAny},
                                   {Role::constants, R, 0, 1},    {Role::output, W, 0, kAny},
                                   {Role::stash, R | W, 0, kAny}, {Role::temporary, W, 0, kAny}};
constexpr RoleRule kBackward[] = {{Role::input, R, 0, kAny},          {Role::output, R, 0, kAny},
                                  {Role::stash, R, 0, kAny},          {Role::parameters, R, 0, kAny},
                                  {Role::constants, R, 0, 1},         {Role::output_gradient, R, 0, kAny},
                                  {Role::input_gradient, W, 0, kAny}, {Role::gradients, W | RW, 0, kAny},
                                  {Role::temporary, W, 0, kAny}};
// What happens between the two halves is in a stash: gradients inside the segment.
constexpr RoleRule kBackwardInput[] = {
    {Role::input, R, 0, kAny},          {Role::output, R, 0, kAny},
    {Role::stash, R | W | RW, 0, kAny}, {Role::parameters, R, 0, kAny},
    {Role::constants, R, 0, 1},         {Role::output_gradient, R, 0, kAny},
    {Role::input_gradient, W, 0, kAny}, {Role::gradients, W | RW, 0, kAny},
    {Role::temporary, W, 0, kAny}};
constexpr RoleRule kBackwardWeight[] = {
    {Role::input, R, 0, kAny},          {Role::output, R, 0, kAny},   {Role::stash, R, 0, kAny},
    {Role::parameters, R, 0, kAny},     {Role::constants, R, 0, 1},   {Role::output_gradient, R, 0, kAny},
    {Role::gradients, W | RW, 1, kAny}, {Role::temporary, W, 0, kAny}};
constexpr RoleRule kAdd[] = {{Role::destination, RW, 1, 1}, {Role::source, R, 1, 1}};
constexpr RoleRule kCast[] = {
    {Role::destination, W, 1, 1}, {Role::source, R, 1, 1}, {Role::residual, RW, 0, 1}};
constexpr RoleRule kExchange[] = {{Role::send, R, 0, kAny}, {Role::receive, W, 0, kAny}};
constexpr RoleRule kInPlace[] = {{Role::data, RW, 1, 1}};
constexpr RoleRule kRingReduceScatter[] = {{Role::data, RW, 1, 1}, {Role::temporary, W, 1, 1}};
constexpr RoleRule kPush[] = {
    {Role::gradients, R, 1, 1}, {Role::verdict, R, 0, 2}, {Role::predicate, R, 0, 1}};
constexpr RoleRule kPull[] = {{Role::parameters, W, 1, 1}};
constexpr RoleRule kNorm[] = {{Role::gradients, R, 0, kAny},       {Role::parameters, R, 0, kAny},
                              {Role::chunks, R | W | RW, 0, kAny}, {Role::verdict, R | W | RW, 0, kAny},
                              {Role::constants, R, 0, 1},          {Role::temporary, W, 0, kAny}};
constexpr RoleRule kPropose[] = {{Role::gradients, R, 0, kAny}, {Role::parameters, R, 0, kAny},
                                 {Role::state, RW, 0, kAny},    {Role::constants, R, 1, 1},
                                 {Role::verdict, R, 1, kAny},   {Role::predicate, R, 0, 1},
                                 {Role::chunks, W, 1, 1}};
constexpr RoleRule kRatios[] = {{Role::chunks, R, 1, 3},
                                {Role::verdict, R, 1, kAny},
                                {Role::constants, R, 1, 1},
                                {Role::scales, W, 1, 1}};
constexpr RoleRule kDigest[] = {{Role::parameters, R, 0, kAny}, {Role::chunks, W, 1, 1}};
constexpr RoleRule kAgree[] = {{Role::metrics, R, 0, kAny},
                               {Role::constants, R, 0, 1},
                               {Role::data, W | RW, 0, 1},
                               {Role::verdict, W | RW, 1, 1}};
constexpr RoleRule kUpdate[] = {
    {Role::gradients, R, 1, 1}, {Role::parameters, RW, 1, 1}, {Role::state, R | RW, 0, kAny},
    {Role::constants, R, 1, 1}, {Role::verdict, R, 0, kAny},  {Role::predicate, R, 0, 1},
    {Role::scales, R, 0, 1},    {Role::destination, W, 0, 1}, {Role::temporary, W, 0, kAny}};
constexpr RoleRule kSnapshot[] = {{Role::parameters, R, 0, kAny},  {Role::state, R, 0, kAny},
                                  {Role::residual, R, 0, kAny},    {Role::constants, R, 0, 1},
                                  {Role::destination, W, 0, kAny}, {Role::metrics, W, 0, 1}};
constexpr RoleRule kServe[] = {{Role::parameters, W | RW, 1, 1},
                               {Role::state, RW, 0, 1},
                               {Role::gradients, W, 1, kAny},
                               {Role::temporary, W, 0, kAny},
                               {Role::destination, RW, 0, 1}};

/// kind, lanes, needs segment, needs micro-batch, whole elements, operands. By InstructionKind.
constexpr std::array<InstructionRule, kInstructionKindCount> kRules = {{
    {InstructionKind::constants, kCopy | kCompute, false, false, false, kConstants},
    {InstructionKind::load, kCopy | kCompute, false, false, false, kLoad},
    {InstructionKind::forward, kCompute, true, true, false, kForward},
    {InstructionKind::backward, kCompute, true, true, false, kBackward},
    {InstructionKind::backward_input, kCompute, true, true, false, kBackwardInput},
    {InstructionKind::backward_weight, kCompute, true, true, false, kBackwardWeight},
    {InstructionKind::recompute, kCompute, true, true, false, kRecompute},
    {InstructionKind::add, kCompute | kCopy | kComm, false, false, true, kAdd},
    {InstructionKind::cast, kCompute | kCopy | kComm, false, false, true, kCast},
    {InstructionKind::exchange, kComm, false, false, false, kExchange},
    {InstructionKind::all_reduce, kComm, false, false, true, kInPlace},
    {InstructionKind::ring_reduce_scatter, kComm, false, false, true, kRingReduceScatter},
    {InstructionKind::ring_all_gather, kComm, false, false, false, kInPlace},
    {InstructionKind::push, kComm, true, false, true, kPush},
    {InstructionKind::pull, kComm, true, false, true, kPull},
    {InstructionKind::norm, kCompute, false, false, false, kNorm},
    {InstructionKind::propose, kCompute, false, false, true, kPropose},
    {InstructionKind::ratios, kCompute, false, false, false, kRatios},
    {InstructionKind::digest, kCompute, false, false, false, kDigest},
    {InstructionKind::agree, kComm, false, false, false, kAgree},
    {InstructionKind::update, kCompute, false, false, true, kUpdate},
    {InstructionKind::snapshot, kCopy | kCompute, false, false, false, kSnapshot},
    {InstructionKind::serve, kServer, true, false, false, kServe},
}};

}  // namespace

std::string_view name_of(Access access) {
  return access == Access::read ? "read" : access == Access::write ? "written" : "read and written";
}

bool runs_segment(InstructionKind kind) {
  return kind == InstructionKind::forward || kind == InstructionKind::recompute || is_backward(kind);
}

bool is_backward(InstructionKind kind) {
  return kind == InstructionKind::backward || kind == InstructionKind::backward_input ||
         kind == InstructionKind::backward_weight;
}

bool is_outbox(const Instruction& instruction, const Operand& operand) {
  return instruction.kind == InstructionKind::serve && instruction.bound < 0 &&
         operand.role == Role::temporary;
}

std::string RoleRule::access_text() const {
  std::vector<std::string> allowed;
  for (const Access access : {Access::read, Access::write, Access::read_write})
    if (allows(access)) allowed.emplace_back(name_of(access));
  return join(allowed, " or ");
}

std::string RoleRule::count_text() const {
  if (least == most) return fmt::format("{}", least);
  return most == kAny ? fmt::format("at least {}", least) : fmt::format("{} to {}", least, most);
}

const RoleRule* InstructionRule::find(Role role) const {
  for (const RoleRule& one : roles)
    if (one.role == role) return &one;
  return nullptr;
}

std::string InstructionRule::roles_text() const {
  std::vector<std::string> names;
  for (const RoleRule& one : roles) names.emplace_back(name_of(one.role));
  return join(names, ", ");
}

const InstructionRule& rule_of(InstructionKind kind) { return nth(kRules, kind); }

}  // namespace lockstep::program
