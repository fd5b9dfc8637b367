// One sample of a chat reply: the engine's events become deltas of content, reasoning and calls, in packets.
#pragma once

#include <string>
#include <vector>

#include "m3/request.h"
#include "src/chat/parser.h"
#include "src/server/chat_call.h"
#include "src/server/packets.h"

namespace m3::server {

struct Delta {
  enum class Kind : std::uint8_t {
    content,
    reasoning,
    call,       // a call begins: `text` is the tool's name, `call_id` its id
    arguments,  // more of its arguments' JSON text
  };
  Kind kind = Kind::content;
  std::string text;
  int call = -1;  // index among the reply's calls
  std::string call_id;
};

class ChatSample {
 public:
  // `joins`: fragments are joined and cut as packets.h says; without, they come as they are. `call` must outlive this.
  ChatSample(const ChatCall& call, bool joins);

  // What is to be sent now. The last event gives all that is left.
  std::vector<Delta> event(const Event& event, Clock::time_point now);
  std::optional<Clock::time_point> due() const { return joiner_.due(); }
  std::vector<Delta> tick(Clock::time_point now);

  const Usage& usage() const { return usage_; }
  FinishReason finish() const { return finish_; }
  int calls() const { return calls_; }
  // "stop", "length", "tool_calls", "abort".
  std::string finish_reason() const;
  // The stop string or stop id that ended it, or null.
  const Json& stop_reason() const { return stop_reason_; }

 private:
  void take(const std::vector<chat::ParseEvent>& events, Clock::time_point now);
  void push(Channel channel, int call, std::string_view text, Clock::time_point now);
  void flush();
  void append(std::vector<Packet> packets);
  void close_inline_reasoning(Clock::time_point now);

  const ChatCall& call_;
  chat::OutputParser parser_;
  PacketJoiner joiner_;
  std::vector<Delta> out_;
  Usage usage_;
  FinishReason finish_ = FinishReason::none;
  Json stop_reason_;
  bool inline_reasoning_ = false;
  int calls_ = 0;
};

// vLLM's stop_reason: the stop string, the id of stop_token_ids, or null for an end token.
Json stop_reason_of(const Request& request, const Event& last);

}  // namespace m3::server
