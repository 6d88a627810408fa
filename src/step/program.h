#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// A step program is the list of everything one rank does in one iteration of a loop. It is data: compilers in
/// parallel/ write it, the memory plan places its buffers, the checker proves things about it, executors run it, and
/// errors quote it. Executors and checkers know nothing of the strategy that wrote it.

enum class InstructionKind {
  load,             ///< next micro-batch (and the step's constants) into buffers
  forward,          ///< a segment, for one micro-batch
  backward,         ///< both halves of a segment's backward, op by op (gradients inside it live one op long)
  backward_input,   ///< only the gradients of inputs (joint ops do everything here)
  backward_weight,  ///< only the gradients of parameters
  recompute,        ///< forward again, to restore what backward needs
  add,              ///< destination = destination + source (a node of the gradient tree, a fan-out, a tied weight)
  cast,             ///< destination = source in another element type
  exchange,         ///< a group of sends and receives that start together
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  push,             ///< gradients to a server
  pull,             ///< parameters from a server
  norm,             ///< sums of squares by chunks of 65,536 elements
  finite,           ///< flag: are all elements finite?
  agree,            ///< a few scalars of all ranks: loss, counts, stop request, state hash
  update,           ///< optimizer on a range of parameters
  snapshot,         ///< parameters and state to the checkpoint writer
  serve,            ///< reactive: messages to handlers until all workers have left
};
std::string_view name_of(InstructionKind kind);
bool communicates(InstructionKind kind);   ///< exchange ... pull, agree

enum class LaneKind { compute, copy, comm, server };
struct Lane {
  std::string name;
  LaneKind kind;
};

/// A group of ranks with a channel of its own. Members are world ranks; the index is the rank within the group.
struct Group {
  std::string name;
  std::vector<int> members;
};

/// Where bytes live, and what they count as in the memory table.
enum class Space { arena, parameters, gradients, optimizer, staging, scalars };
enum class Category { parameters, gradients, optimizer_state, activations, workspace, staging };
std::string_view name_of(Space space);
std::string_view name_of(Category category);

/// What a program's memory is made of. Buffers in `arena` may share bytes once placed; buffers of other spaces are
/// alive for ever and keep their contents between iterations.
struct ProgramBuffer {
  std::string name;
  Space space = Space::arena;
  Category category = Category::activations;
  int64_t size_bytes = 0;
  int64_t offset = -1;           ///< within its space; -1 before the memory plan
};

struct ByteRange {
  int buffer = -1;
  int64_t offset = 0;            ///< within the buffer
  int64_t size_bytes = 0;
};

enum class Access { read, write, read_write };

/// What an operand is to its instruction. `index` tells several of one role apart (third input, receive from peer 2).
enum class Role {
  batch,             ///< load: one model input
  constants,         ///< StepConstants
  input, output,     ///< activations into and out of a segment
  stash,             ///< what backward needs from forward, besides inputs and outputs
  temporary,         ///< scratch of this instruction alone; contents never survive it
  output_gradient, input_gradient,
  parameters, gradients, state,
  metrics,           ///< loss sums of a leaf
  source, destination,   ///< add, cast
  data,              ///< collectives in place
  send, receive,     ///< exchange; `peer` says with whom
  chunks,            ///< partial sums of squares
  verdict,           ///< loss, counts, norm, finite flag, as agreed
  predicate,         ///< flag: nothing is written where it is false
};
std::string_view name_of(Role role);

struct Operand {
  Role role;
  int index = 0;
  Access access = Access::read;
  ByteRange range;
  int peer = -1;                 ///< send, receive: rank within the group
};

/// `distance` 0: the instruction of the same iteration; 1: of the one before. Order within a lane needs no dependency.
struct Dependency {
  int instruction;
  int distance = 0;
  bool operator==(const Dependency&) const = default;
};

enum class DeadlineClass { compute, communication, input, storage };

struct Instruction {
  InstructionKind kind = InstructionKind::load;
  int lane = 0;
  int segment = -1;              ///< forward, backward..., update: whose parameters
  int micro_batch = -1;          ///< within the step, over all leaves of this rank, from 0
  int leaf = -1;                 ///< virtual replica (world-wide number), where the gradient goes to
  bool accumulate = false;       ///< backward: add to the leaf; forward of a loss: add to the leaf's metrics
  int group = -1;                ///< communicating instructions
  int root = -1;                 ///< broadcast
  std::vector<Operand> operands;
  std::vector<Dependency> after;
  DeadlineClass deadline = DeadlineClass::compute;
};

/// What the mathematics check needs to know: where a parameter lies, and where each of its uses leaves its gradient
/// within the bucket of its segment.
struct ParameterPlace {
  std::string name;
  int buffer = -1;               ///< in space parameters; -1 where this rank does not hold it
  int64_t offset = 0;
  int64_t size_bytes = 0;
  struct Use {
    int segment;
    int64_t bucket_offset;       ///< bytes from the start of the segment's bucket
  };
  std::vector<Use> uses;         ///< in graph order
};

enum class Reduction { fast, reproducible };

struct Program {
  std::string name;              ///< "step", "evaluate", "boundary"
  int rank = 0;
  int world_size = 1;
  Reduction reduction = Reduction::fast;
  int virtual_replicas = 1;      ///< leaves of the gradient tree, over all ranks
  int micro_batches_per_leaf = 1;
  std::vector<Lane> lanes;
  std::vector<Group> groups;
  std::vector<ProgramBuffer> buffers;
  std::vector<ParameterPlace> parameters;
  std::vector<Instruction> instructions;   ///< program order: a sequential execution in it is correct on one rank

  int add_lane(std::string name, LaneKind kind);
  int add_buffer(std::string name, Space space, Category category, int64_t size_bytes);
  /// The whole of a buffer.
  ByteRange whole(int buffer) const { return {buffer, 0, buffers[static_cast<size_t>(buffer)].size_bytes}; }
};

/// "step instruction 17 (all_reduce, lane reduce, segment 3, micro-batch 1)": how every error names an instruction.
std::string describe(const Program& program, int instruction);

/// Writes and reads the golden text (docs/step-program.md). Reading reports line numbers and throws ConfigError.
std::string to_text(const Program& program);
Program program_from_text(std::string_view text);

/// Equal on two ranks that run the same list, apart from their own rank number.
uint64_t hash_of(const Program& program);

/// Adds the dependencies that sequential execution in program order implies: for any two instructions on different
/// lanes whose ranges overlap, one of them writing, within the iteration and from one to the next. Dependencies that
/// others imply are left out. Works on buffers before the memory plan (which keeps them valid, see memory_plan.h).
void derive_dependencies(Program& program);

}  // namespace lockstep
