#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>
#include <string>

#include "control/connection.h"
#include "control/control_protocol.h"

namespace lockstep::control {
namespace {

using namespace std::string_literals;

Hello example_hello() {
  Hello hello{.token = {}, .rank = 3, .pid = 4711};
  for (size_t i = 0; i < hello.token.size(); ++i) hello.token[i] = static_cast<uint8_t>(i + 1);
  return hello;
}

TEST(ControlProtocol, HelloHasTheWrittenBytes) {
  const auto bytes = encode_hello(example_hello());
  std::string expected = "LOCKSTEP"s + "\1\0\0\0"s + "\3\0\0\0"s + "\x67\x12\0\0\0\0\0\0"s;
  for (char i = 1; i <= 32; ++i) expected += i;
  EXPECT_EQ(std::string(bytes.begin(), bytes.end()), expected);
  const auto back = decode_hello(bytes);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->rank, 3);
  EXPECT_EQ(back->pid, 4711);
  EXPECT_TRUE(same_secret(back->token, example_hello().token));
}

TEST(ControlProtocol, EveryFlippedBitOfAHelloIsNoticedOrChangesWhoSpeaks) {
  const auto token = example_hello().token;
  for (size_t bit = 0; bit < kHelloBytes * 8; ++bit) {
    auto bytes = encode_hello(example_hello());
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    const auto hello = decode_hello(bytes);
    const bool same = hello && same_secret(hello->token, token) && hello->rank == 3 && hello->pid == 4711;
    EXPECT_FALSE(same) << bit;
  }
}

TEST(ControlProtocol, AHelloIsKnownByItsFirstBytes) {
  EXPECT_TRUE(may_begin_hello(""));
  EXPECT_TRUE(may_begin_hello("LOCK"));
  EXPECT_TRUE(may_begin_hello("LOCKSTEP\1\0\0"s));
  EXPECT_FALSE(may_begin_hello("GET / HTTP/1.1"));
  EXPECT_FALSE(may_begin_hello("LOCKSTEX"));
}

TEST(ControlProtocol, SecretsDifferInAnyBit) {
  const JobToken token = draw_token();
  EXPECT_FALSE(same_secret(token.hello, token.answer));
  EXPECT_FALSE(same_secret(token.hello, draw_token().hello));
  for (size_t bit = 0; bit < 256; ++bit) {
    Secret other = token.hello;
    other[bit / 8] = static_cast<uint8_t>(other[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(same_secret(token.hello, other)) << bit;
  }
  EXPECT_TRUE(same_secret(token.hello, Secret(token.hello)));
}

std::optional<FrameHeader> header_of(const std::string& bytes) {
  return decode_frame_header(std::span<const char, kFrameHeaderBytes>(bytes.data(), kFrameHeaderBytes));
}

TEST(ControlProtocol, FramesAreBoundedAndOfKnownTypes) {
  EXPECT_EQ(encode_frame(FrameType::mail, "abc"), "\3\0\0\0\4\0\0\0abc"s);
  EXPECT_TRUE(header_of("\0\2\x10\0\4\0\0\0"s));   // 1 MiB + 512
  EXPECT_FALSE(header_of("\1\2\x10\0\4\0\0\0"s));  // one more
  EXPECT_FALSE(header_of("\xff\xff\xff\xff\4\0\0\0"s));
  EXPECT_FALSE(header_of("\1\0\0\0\0\0\0\0"s));  // no such type
  EXPECT_FALSE(header_of("\1\0\0\0\xd\0\0\0"s));
  EXPECT_FALSE(header_of("\1\0\0\0\4\0\0\1"s));  // not zero
}

const Heartbeat kHeartbeat{
    1234, {{0, Activity::waiting, 0.25, "step instruction 4"}, {17, Activity::storage, 1e6, ""}}};

TEST(ControlProtocol, ContentsComeBackAsTheyWere) {
  EXPECT_EQ(decode_heartbeat(encode_heartbeat(kHeartbeat)), kHeartbeat);
  const auto mail = decode_mail(encode_mail("topic", "some\0text"s));
  ASSERT_TRUE(mail);
  EXPECT_EQ(mail->topic, "topic");
  EXPECT_EQ(mail->text, "some\0text"s);
  EXPECT_EQ(decode_ranks(encode_ranks({})), std::vector<int>{});
  EXPECT_EQ(decode_ranks(encode_ranks({0, 7, 65535})), (std::vector<int>{0, 7, 65535}));
  const auto note = decode_abort(encode_abort({65, "a shard is damaged"}));
  ASSERT_TRUE(note);
  EXPECT_EQ(note->code, 65);
  EXPECT_EQ(note->reason, "a shard is damaged");
  const auto decision = decode_decision(encode_decision({Fault::deadlock, 7, 201, "why", "printed"}));
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->fault, Fault::deadlock);
  EXPECT_EQ(decision->rank, 7);
  EXPECT_EQ(decision->code, 201);
  EXPECT_EQ(decision->report, "why");
  EXPECT_EQ(decision->printed, "");  // who prints is not rank 0's choice
}

TEST(ControlProtocol, NothingShorterThanAMessageIsOne) {
  const std::string heartbeat = encode_heartbeat(kHeartbeat), abort = encode_abort({65, "reason"}),
                    decision = encode_decision({Fault::lost, 2, 200, "why", ""}),
                    mail = encode_mail("topic", "");
  for (size_t size = 0; size < heartbeat.size(); ++size)
    EXPECT_FALSE(decode_heartbeat(heartbeat.substr(0, size))) << size;
  for (size_t size = 0; size < abort.size(); ++size)
    EXPECT_FALSE(decode_abort(abort.substr(0, size))) << size;
  for (size_t size = 0; size < decision.size(); ++size)
    EXPECT_FALSE(decode_decision(decision.substr(0, size))) << size;
  for (size_t size = 0; size < mail.size(); ++size) EXPECT_FALSE(decode_mail(mail.substr(0, size))) << size;
  EXPECT_FALSE(decode_heartbeat(heartbeat + "x"));
  EXPECT_FALSE(decode_abort(abort + "x"));
  const std::string some = encode_ranks({1, 2});
  for (size_t size = 0; size < some.size(); ++size) EXPECT_FALSE(decode_ranks(some.substr(0, size))) << size;
  EXPECT_FALSE(decode_ranks(some + "x"));
  EXPECT_FALSE(decode_decision(decision + "x"));
}

TEST(ControlProtocol, RandomBytesNeverHarmADecoder) {
  std::mt19937 random(1);
  const std::string heartbeat = encode_heartbeat(kHeartbeat);
  int accepted = 0;
  for (int round = 0; round < 100000; ++round) {
    std::string bytes = round % 2 == 0 ? std::string(random() % 100, '\0') : heartbeat;
    if (round % 2 == 0) {
      for (char& byte : bytes) byte = static_cast<char>(random());
    } else {
      for (int i = 0; i < 3; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (const auto decoded = decode_heartbeat(bytes)) {
      ++accepted;
      for (const auto& slot : decoded->slots) {
        EXPECT_LT(slot.slot, Progress::kSlots);
        EXPECT_LE(slot.activity, Activity::waiting);
        EXPECT_GE(slot.seconds, 0);
      }
    }
    decode_abort(bytes);
    decode_ranks(bytes);
    decode_mail(bytes);
    decode_decision(bytes);
  }
  EXPECT_GT(accepted, 1000);  // changed texts and numbers are no errors
}

struct SocketPair {
  SocketPair() {
    int sockets[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets), 0);
    near = Connection(Descriptor(sockets[0]));
    far = Descriptor(sockets[1]);
  }
  void write(std::string_view bytes) const {
    ASSERT_EQ(::send(far.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  Connection near;
  Descriptor far;
};

TEST(ControlConnection, FramesSurviveAnyFragmentation) {
  std::mt19937 random(2);
  SocketPair pair;
  std::string stream;
  std::vector<std::string> sent, received;
  for (int i = 0; i < 300; ++i) {
    sent.push_back(std::string(random() % 200, static_cast<char>('a' + i % 26)));
    stream += encode_frame(FrameType::mail, sent.back());
  }
  for (size_t at = 0; at < stream.size();) {
    const size_t count = std::min<size_t>(1 + random() % 37, stream.size() - at);
    pair.write(std::string_view(stream).substr(at, count));
    at += count;
    if (random() % 3 == 0) continue;
    pair.near.receive();
    while (const auto frame = pair.near.next()) received.push_back(frame->payload);
  }
  pair.near.receive();
  while (const auto frame = pair.near.next()) received.push_back(frame->payload);
  EXPECT_EQ(received, sent);
}

TEST(ControlConnection, WhatCameBeforeTheEndStillCounts) {
  SocketPair pair;
  pair.write(encode_frame(FrameType::farewell, "") + "\5\0\0"s);
  pair.far.reset();
  pair.near.receive();
  EXPECT_TRUE(pair.near.open());
  ASSERT_TRUE(pair.near.next());
  EXPECT_FALSE(pair.near.next());
  pair.near.receive();
  EXPECT_FALSE(pair.near.next());
  EXPECT_FALSE(pair.near.open());
  EXPECT_EQ(pair.near.reason(), "its connection closed");
}

TEST(ControlConnection, AnOversizeFrameEndsItBeforeItIsRead) {
  SocketPair pair;
  pair.write("\xff\xff\xff\x7f\4\0\0\0"s);
  pair.near.receive();
  EXPECT_FALSE(pair.near.next());
  EXPECT_FALSE(pair.near.open());
  EXPECT_EQ(pair.near.reason(),
            "it sent something that is not a lockstep message, so its connection was closed");
}

TEST(ControlConnection, WritingToWhoIsGoneNeitherBlocksNorSignals) {
  SocketPair pair;
  pair.far.reset();
  pair.near.send(FrameType::mail, std::string(100000, 'x'));
  pair.near.flush();
  EXPECT_EQ(pair.near.unsent_bytes(), 0U);
  pair.near.receive();
  pair.near.next();
  EXPECT_FALSE(pair.near.open());
}

TEST(ControlConnection, WhatTheSystemDoesNotTakeWaits) {
  SocketPair pair;
  const std::string large(1 << 20, 'y');
  pair.near.send(FrameType::mail, large);
  pair.near.flush();
  EXPECT_GT(pair.near.unsent_bytes(), 0U);
  Connection other(std::move(pair.far));
  for (int round = 0; round < 1000; ++round) {
    pair.near.flush();
    other.receive();
    if (const auto frame = other.next()) {
      EXPECT_EQ(frame->payload, large);
      return;
    }
  }
  FAIL() << "the frame did not arrive";
}

}  // namespace
}  // namespace lockstep::control
