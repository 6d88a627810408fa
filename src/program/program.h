#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/index.h"
#include "layout/canonical_tree.h"
#include "lockstep/tensor.h"
#include "program/blocks.h"
#include "program/members.h"
#include "tensor/part.h"

namespace lockstep::program {

/// A step program lists everything that one rank does in one iteration of a loop. It is data: compilers in
/// parallel/ write it, the memory plan places its buffers, the checker proves it, executors run it, and
/// errors quote it. Executors and the checker do not know which strategy wrote it. docs/step-program.md is
/// the reference of the instruction set: operands of every kind, and what the checker proves.

enum class InstructionKind {
  constants,        ///< the step's: learning rate, seed, ... (StepScalars)
  load,             ///< next micro-batch into buffers
  forward,          ///< a segment, for one micro-batch
  backward,         ///< both halves of a segment's backward, op by op (gradients inside it live one op long)
  backward_input,   ///< only the gradients of inputs (joint ops do everything here)
  backward_weight,  ///< only the gradients of parameters
  recompute,        ///< forward again, to restore what backward needs
  add,       ///< destination = destination + source (a node of the gradient tree, a fan-out, a tied weight)
  cast,      ///< destination = source in another element type
  exchange,  ///< a group of sends and receives that start together
  all_reduce,
  ring_reduce_scatter,  ///< around a ring, round by round, in blocks of any sizes
  ring_all_gather,      ///< likewise
  push,                 ///< gradients to a server's `serve`
  pull,                 ///< parameters from a server's `serve`
  norm,                 ///< sums of squares by chunks of 65,536 elements: of gradients, and of parameters
  propose,   ///< moves optimizer state, and sums the squares of the updates that follow from it, by chunks
  ratios,    ///< a scale for each parameter's update, from its sums of squares
  digest,    ///< of parameters, by the same chunks: replicas with equal bits have equal ones
  agree,     ///< a few scalars of all ranks: loss, counts, stop request, state hash
  update,    ///< optimizer on a range of parameters
  snapshot,  ///< parameters and state to the checkpoint writer
  serve,     ///< reactive: applies pushes and answers pulls, until all workers have left
};
inline constexpr int kInstructionKindCount = static_cast<int>(InstructionKind::serve) + 1;
std::string_view name_of(InstructionKind kind);
bool communicates(InstructionKind kind);  ///< exchange ... pull, agree

enum class LaneKind { compute, copy, comm, server };
std::string_view name_of(LaneKind kind);
struct Lane {
  std::string name;
  LaneKind kind;
  bool operator==(const Lane&) const = default;
};

/// How a group's bytes travel. host: messages between hosts' memory. shared_memory: memory that all members
/// share, on one host. device: device memory, by operations that follow a stream.
enum class Transport { host, shared_memory, device };
inline constexpr int kTransportCount = 3;
std::string_view name_of(Transport transport);

/// A group of ranks with its own channel. Members are world ranks; the index is the rank within the group.
struct Group {
  std::string name;
  Members members;
  Transport transport = Transport::host;  ///< the program relies on it; communicators are made accordingly
  bool operator==(const Group&) const = default;
};

/// The place of bytes, and their category in the memory table.
enum class Space { arena, parameters, gradients, optimizer, staging, scalars, host };
inline constexpr int kSpaceCount = 7;
enum class Category { parameters, gradients, optimizer_state, activations, workspace, staging };
std::string_view name_of(Space space);
std::string_view name_of(Category category);

/// A piece of a program's memory. Buffers in `arena` may share bytes once placed, and nothing in them
/// outlives the iteration. `host` is host memory, if the device has its own memory. Buffers of other spaces
/// do not share bytes and keep their contents between iterations. Before the first iteration only buffers
/// that hold parameters (ParameterPlace), and those in `optimizer`, have contents.
struct ProgramBuffer {
  std::string name;
  Space space = Space::arena;
  Category category = Category::activations;
  int64_t size_bytes = 0;
  int64_t offset = -1;  ///< within its space; -1 before the memory plan
  bool operator==(const ProgramBuffer&) const = default;
};

struct ByteRange {
  int buffer = -1;
  int64_t offset = 0;  ///< within the buffer
  int64_t size_bytes = 0;
  bool operator==(const ByteRange&) const = default;
};

enum class Access { read, write, read_write };

/// The role of an operand in its instruction. `index` distinguishes operands of the same role (third input,
/// receive from peer 2).
enum class Role {
  batch,      ///< load: one model input
  constants,  ///< run::StepScalars
  input,
  output,     ///< activations into and out of a segment
  stash,      ///< what backward needs from forward, besides inputs and outputs
  temporary,  ///< scratch of this instruction alone; contents never survive it
  output_gradient,
  input_gradient,
  parameters,
  gradients,
  state,
  metrics,  ///< loss sums of a leaf
  source,
  destination,  ///< add, cast; update: the copy in a narrower type
  data,         ///< collectives in place
  send,
  receive,    ///< exchange; `peer` says with whom
  chunks,     ///< partial sums of squares
  verdict,    ///< loss, counts, norm, finite flag, as agreed
  predicate,  ///< update: a flag on the device; if it is false, nothing is written
  scales,     ///< a number for each of the model's parameters, by which its update is scaled
  residual,   ///< what earlier roundings of a leaf's gradient have lost: cast, snapshot
};
inline constexpr int kRoleCount = static_cast<int>(Role::residual) + 1;
std::string_view name_of(Role role);

struct Operand {
  Role role;
  int index = 0;
  Access access = Access::read;
  ByteRange range;
  int peer = -1;  ///< send, receive, and all operands of push, pull, serve: rank within the group
  DType dtype = DType::float32;  ///< of the elements; decides sums, casts and what arrives where
  int64_t position = 0;  ///< gradients of a backward; gradients and parameters of a norm or propose: the
                         ///< range's first byte within the bucket of its segment, counted in float32 bytes,
                         ///< for operands that cover a part of it
  bool operator==(const Operand&) const = default;
};

/// `distance` 0: the instruction of the same iteration; 1: of the one before. Order within a lane needs no
/// dependency.
struct Dependency {
  int instruction;
  int distance = 0;
  bool operator==(const Dependency&) const = default;
};

enum class DeadlineClass { compute, communication, input, storage };

struct Instruction {
  InstructionKind kind = InstructionKind::load;
  int lane = 0;
  int segment = -1;      ///< forward, backward..., update: whose parameters
  int micro_batch = -1;  ///< within the step, over all leaves of this rank, from 0
  int leaf = -1;         ///< world-wide number: where the gradient goes to
  int leaves = 1;  ///< that the micro-batch holds, from `leaf` on: a node of the tree, which kernels fold
  bool accumulate = false;  ///< backward: add to the leaf; forward of a loss: add to the leaf's metrics
  bool ordered = false;     ///< all_reduce: the sum is the canonical tree over the group's ranks
  /// cast: runs only if nothing is left of an iteration before, since other programs or the host may have
  /// written what it reads: in the first iteration, and in the first after an executor has finished.
  bool anew = false;
  int group = -1;  ///< communicating instructions
  Blocks blocks;   ///< ring_reduce_scatter, ring_all_gather: of their data
  int bound = -1;  ///< serve: updates that may be missing from what a worker pulls; -1: any number
  std::vector<Operand> operands;
  std::vector<Dependency> after;
  DeadlineClass deadline = DeadlineClass::compute;
  bool operator==(const Instruction&) const = default;
};

inline constexpr int64_t kNoGradient = -1;

/// The place of a parameter, its optimizer state and each of its gradients in a rank's memory. Everything
/// that walks over parameters (initial values, updates, norms, hashes, snapshots, checkpoints, the checker)
/// uses it.
struct ParameterPlace {
  std::string name;
  int buffer = -1;         ///< in space parameters; -1 if this rank holds nothing of it
  int64_t offset = 0;      ///< of the held part's first byte
  int64_t size_bytes = 0;  ///< of the whole, in float32
  tensor::Part held;       ///< what this rank has of it
  struct Use {
    int segment;
    int64_t bucket_offset;  ///< bytes from the start of the segment's bucket; kNoGradient: it is frozen
    bool operator==(const Use&) const = default;
  };
  std::vector<Use> uses;  ///< in graph order
  int narrow_buffer =
      -1;  ///< buffer of the held part's copy in a narrower type, which casts and updates make; -1: no copy
  int64_t narrow_offset = 0;
  tensor::Part owned;  ///< what this rank updates of it
  /// Where the owned part of a slot of its optimizer state lies.
  struct State {
    int buffer;  ///< in space optimizer
    int64_t offset;
    bool operator==(const State&) const = default;
  };
  std::vector<State> states;  ///< by slot; none if this rank holds none
  /// Bytes of scratch with which an update works on all of its elements together; 0: each by itself.
  int64_t whole_scratch = 0;
  /// Whether it never changes: its uses have no gradients.
  bool is_frozen() const { return !uses.empty() && uses[0].bucket_offset == kNoGradient; }
  int64_t elements() const { return size_bytes / 4; }
  bool is_held_whole() const { return held.is_whole(elements()); }
  /// The bytes of the held part, of its copy, and of the owned part of a slot.
  ByteRange held_range() const { return {buffer, offset, 4 * held.count()}; }
  ByteRange narrow_range(DType dtype) const {
    return {narrow_buffer, narrow_offset, held.count() * size_of(dtype)};
  }
  ByteRange state_range(int slot) const {
    return {nth(states, slot).buffer, nth(states, slot).offset, 4 * owned.count()};
  }
  bool operator==(const ParameterPlace&) const = default;
};

/// Residuals of the roundings of a segment's bucket, of consecutive leaves that this rank computes
/// (Program::error_feedback): float32, one leaf after the other. A leaf has as many bytes as of its bucket
/// are rounded, in the same places.
struct ResidualPlace {
  int segment = 0;
  int buffer = -1;  ///< in space optimizer, all of it
  int first_leaf = 0, leaves = 1;
  /// Of a leaf, in a buffer of that size.
  int64_t leaf_bytes(int64_t buffer_bytes) const { return buffer_bytes / leaves; }
  bool operator==(const ResidualPlace&) const = default;
};

struct Program {
  std::string name;  ///< "step", "evaluate", "boundary"
  int rank = 0;
  int world_size = 1;
  /// With several stages: workers are ordered stage by stage, and so many consecutive workers, of one stage,
  /// hold equal bits. 0: one stage.
  int replicas = 0;
  layout::Reduction reduction = layout::Reduction::fast;
  /// The type to which sums of gradients over workers may round: a cast to it, and each sum in it, is a
  /// rounding that the program declares. Under REPRODUCIBLE every node of the gradient tree rounds to it,
  /// leaves included, whether ranks or one rank add it. float32: nothing rounds.
  DType wire = DType::float32;
  /// Whether each rounding of a leaf's gradient adds the residual of that leaf before, and keeps what it
  /// loses as the next step's. Sums of several leaves round without.
  bool error_feedback = false;
  int leaves = 1;  ///< of the gradient tree, over all ranks (layout/batch_division.h)
  int micro_batches_per_leaf = 1;
  std::vector<Lane> lanes;
  std::vector<Group> groups;
  std::vector<ProgramBuffer> buffers;
  std::vector<ParameterPlace> parameters;
  std::vector<ResidualPlace> residuals;  ///< of this rank
  std::vector<Instruction>
      instructions;  ///< program order: a sequential execution in it is correct on one rank

  const Lane& lane(int id) const { return nth(lanes, id); }
  const Group& group(int id) const { return nth(groups, id); }
  const ProgramBuffer& buffer(int id) const { return nth(buffers, id); }
  const ParameterPlace& parameter(int id) const { return nth(parameters, id); }
  const Instruction& instruction(int id) const { return nth(instructions, id); }
  ProgramBuffer& buffer(int id) { return nth(buffers, id); }
  ParameterPlace& parameter(int id) { return nth(parameters, id); }
  Instruction& instruction(int id) { return nth(instructions, id); }

  int add_lane(std::string name, LaneKind kind);
  int add_buffer(std::string name, Space space, Category category, int64_t size_bytes);
  bool operator==(const Program&) const = default;
  /// The whole of a buffer.
  ByteRange whole(int buffer) const { return {buffer, 0, nth(buffers, buffer).size_bytes}; }
  /// The residuals of a leaf's bytes of a segment's bucket. REQUIRES: this rank has them.
  ByteRange residual_range(int segment, int leaf, int64_t begin, int64_t size_bytes) const;
};

/// Whether the rank reads batches.
bool loads(const Program& program);

/// The instructions after which an iteration's report is known: those that write a verdict or a digest. If
/// there are none, all instructions.
std::vector<int> report_instructions(const Program& program);

/// "step instruction 17 (all_reduce, lane reduce, segment 3, micro-batch 1)": how every error names an
/// instruction.
std::string describe(const Program& program, int instruction);

/// Writes and reads the golden text (docs/step-program.md): program_from_text(to_text(p)) == p. Names of
/// lanes, groups and buffers must be unique within the program. Reading throws ConfigError with the line
/// number.
std::string to_text(const Program& program);
Program program_from_text(std::string_view text);
/// Several programs, one after the other.
std::vector<Program> programs_from_text(std::string_view text);

/// Equal on two ranks that run the same list, apart from their rank numbers.
uint64_t hash_of(const Program& program);

/// Adds the dependencies that sequential execution in program order implies, within an iteration and from one
/// to the next: between any two instructions on different lanes whose ranges overlap, if one of them writes.
/// Dependencies that lanes and other dependencies imply are omitted, so that lists stay short. Ranges are
/// compared by their placed addresses or, before the memory plan, within their buffers.
void derive_dependencies(Program& program);

}  // namespace lockstep::program
