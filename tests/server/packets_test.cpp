// Sizes of stream packets, with a clock of our own.
#include "src/server/packets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace m3::server {
namespace {

using std::chrono::milliseconds;
using Time = PacketJoiner::Time;

struct Joiner {
  PacketJoiner joiner{true};
  Time now{};
  std::vector<Packet> out;

  void push(std::string_view text, Channel channel = Channel::content, int call = -1) {
    joiner.push(channel, call, text, now, out);
  }
  std::vector<std::string> texts() const {
    std::vector<std::string> list;
    for (const Packet& packet : out) list.push_back(packet.text);
    return list;
  }
};

using Texts = std::vector<std::string>;

std::size_t characters(const std::string& text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

TEST(PacketJoiner, TheFirstFragmentNeverWaits) {
  Joiner j;
  j.push("H");
  EXPECT_EQ(j.texts(), Texts{"H"});
  j.push("e");
  EXPECT_EQ(j.texts(), Texts{"H"});
}

TEST(PacketJoiner, AFragmentWaitsForFiveCharacters) {
  Joiner j;
  j.push("first");
  for (const char* piece : {"a", "b", "c", "d"}) j.push(piece);
  EXPECT_EQ(j.texts(), Texts{"first"});
  j.push("e");
  EXPECT_EQ(j.texts(), (Texts{"first", "abcde"}));
}

TEST(PacketJoiner, OrForFiftyMilliseconds) {
  Joiner j;
  j.push("first");
  EXPECT_FALSE(j.joiner.due());
  j.now += milliseconds(7);
  j.push("a");
  j.now += milliseconds(30);
  j.push("b");
  ASSERT_TRUE(j.joiner.due());
  EXPECT_EQ(*j.joiner.due(), Time{} + milliseconds(57));
  j.joiner.tick(Time{} + milliseconds(56), j.out);
  EXPECT_EQ(j.out.size(), 1u);
  j.joiner.tick(Time{} + milliseconds(57), j.out);
  EXPECT_EQ(j.texts(), (Texts{"first", "ab"}));
  EXPECT_FALSE(j.joiner.due());
}

TEST(PacketJoiner, TheEndOfArgumentsIsNoPacketOfItsOwn) {
  Joiner j;
  j.joiner.note_sent();  // the call's name
  for (const char* piece : {"{\"city\": \"", "Röm", "\", \"days\": ", "3", "}"}) j.push(piece, Channel::arguments, 0);
  j.joiner.flush(j.out);
  std::string joined;
  for (const std::string& text : j.texts()) {
    EXPECT_GE(characters(text), 5u) << text;
    joined += text;
  }
  EXPECT_EQ(joined, "{\"city\": \"Röm\", \"days\": 3}");
  EXPECT_GE(j.out.size(), 3u);
  // What stays behind waits no longer than anything else.
  j.push("{\"text\": \"word", Channel::arguments, 1);
  ASSERT_TRUE(j.joiner.due());
  EXPECT_EQ(*j.joiner.due(), j.now + milliseconds(50));
}

TEST(PacketJoiner, CharactersAreCodePoints) {
  Joiner j;
  j.push("first");
  j.push("😀😀");  // 8 bytes, 2 characters
  EXPECT_EQ(j.out.size(), 1u);
  j.push("ééé");
  EXPECT_EQ(j.texts(), (Texts{"first", "😀😀ééé"}));
}

TEST(PacketJoiner, LongTextIsCutIntoEqualPartsOfWholeCharacters) {
  for (const int count : {200, 201, 399, 401, 10'000}) {
    Joiner j;
    std::string text;
    for (int i = 0; i < count; ++i) text += i % 3 == 0 ? "漢" : i % 3 == 1 ? "😀" : "x";
    j.push(text);
    std::string joined;
    for (const std::string& part : j.texts()) {
      EXPECT_LE(characters(part), 200u);
      EXPECT_GE(characters(part), 100u);
      EXPECT_NE(static_cast<unsigned char>(part[0]) & 0xC0, 0x80);
      joined += part;
    }
    EXPECT_EQ(joined, text) << count;
  }
}

TEST(PacketJoiner, AnotherChannelSendsWhatWaits) {
  Joiner j;
  j.push("thought", Channel::reasoning);
  j.push("ab", Channel::reasoning);
  j.push("answer", Channel::content);
  j.push("{", Channel::arguments, 0);
  j.push("{", Channel::arguments, 1);
  j.joiner.flush(j.out);
  const std::vector<Packet> expected = {{Channel::reasoning, -1, "thought"},
                                        {Channel::reasoning, -1, "ab"},
                                        {Channel::content, -1, "answer"},
                                        {Channel::arguments, 0, "{"},
                                        {Channel::arguments, 1, "{"}};
  EXPECT_EQ(j.out, expected);
}

TEST(PacketJoiner, OffPassesFragmentsOn) {
  PacketJoiner joiner(false);
  std::vector<Packet> out;
  for (const char* piece : {"a", "b"}) joiner.push(Channel::content, -1, piece, Time{}, out);
  joiner.push(Channel::content, -1, std::string(500, 'x'), Time{}, out);
  EXPECT_EQ(out.size(), 3u);
  EXPECT_FALSE(joiner.due());
}

// The verifier's counts, where a token takes at most 20 ms.
TEST(PacketJoiner, SizesMeetTheVerifier) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    Joiner j;
    std::string whole;
    for (int i = 0; i < 400; ++i) {
      const std::string piece(1 + random() % 6, static_cast<char>('a' + i % 26));
      whole += piece;
      j.push(piece);
      j.now += milliseconds(random() % 20);
      j.joiner.tick(j.now, j.out);
    }
    j.joiner.flush(j.out);
    std::size_t tiny = 0;
    std::string joined;
    for (const std::string& part : j.texts()) {
      joined += part;
      if (part.size() < 5) ++tiny;
      EXPECT_LE(part.size(), 200u);
    }
    EXPECT_EQ(joined, whole);
    EXPECT_LE(tiny * 20, j.out.size());
  }
}

}  // namespace
}  // namespace m3::server
