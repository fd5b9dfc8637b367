#include "src/server/chat_sample.h"

#include <algorithm>

#include "src/server/request_id.h"

namespace m3::server {

ChatSample::ChatSample(const ChatCall& call, bool joins) : call_(call), parser_(call.chat.parser()), joiner_(joins) {}

std::vector<Delta> ChatSample::event(const Event& event, Clock::time_point now) {
  usage_ = event.usage;
  if (!event.ids.empty() && event.usage.reasoning_tokens == 0) parser_.skip_reasoning();
  take(parser_.feed(event.text), now);
  if (event.finish != FinishReason::none) {
    finish_ = event.finish;
    stop_reason_ = stop_reason_of(call_.request, event);
    take(parser_.finish(), now);
    close_inline_reasoning(now);
    flush();
  }
  return std::exchange(out_, {});
}

std::vector<Delta> ChatSample::tick(Clock::time_point now) {
  std::vector<Packet> packets;
  joiner_.tick(now, packets);
  append(std::move(packets));
  return std::exchange(out_, {});
}

void ChatSample::take(const std::vector<chat::ParseEvent>& events, Clock::time_point now) {
  using chat::ParseEventKind;
  const bool no_calls = call_.chat.tool_choice.kind == chat::ToolChoice::Kind::none;
  const int most_calls = no_calls ? 0 : call_.chat.parallel_tool_calls ? -1 : 1;
  const auto dropped = [&](const chat::ParseEvent& event) { return most_calls >= 0 && event.call >= most_calls; };
  for (const chat::ParseEvent& event : events) {
    switch (event.kind) {
      case ParseEventKind::content:
        close_inline_reasoning(now);
        push(Channel::content, -1, event.text, now);
        break;
      case ParseEventKind::reasoning:
        if (!call_.include_reasoning) break;
        if (call_.reasoning_split) {
          push(Channel::reasoning, -1, event.text, now);
          break;
        }
        if (!inline_reasoning_) push(Channel::content, -1, "<think>", now);
        inline_reasoning_ = true;
        push(Channel::content, -1, event.text, now);
        break;
      case ParseEventKind::call:
        if (dropped(event)) break;
        close_inline_reasoning(now);
        flush();
        joiner_.note_sent();
        ++calls_;
        out_.push_back({Delta::Kind::call, event.text, event.call, "call_" + random_id()});
        break;
      case ParseEventKind::arguments:
        if (dropped(event)) break;
        push(Channel::arguments, event.call, event.text, now);
        break;
    }
  }
}

void ChatSample::close_inline_reasoning(Clock::time_point now) {
  if (!inline_reasoning_) return;
  inline_reasoning_ = false;
  push(Channel::content, -1, "</think>", now);
}

void ChatSample::push(Channel channel, int call, std::string_view text, Clock::time_point now) {
  std::vector<Packet> packets;
  joiner_.push(channel, call, text, now, packets);
  append(std::move(packets));
}

void ChatSample::flush() {
  std::vector<Packet> packets;
  joiner_.flush(packets);
  append(std::move(packets));
}

void ChatSample::append(std::vector<Packet> packets) {
  for (Packet& packet : packets) {
    const Delta::Kind kind = packet.channel == Channel::content     ? Delta::Kind::content
                             : packet.channel == Channel::reasoning ? Delta::Kind::reasoning
                                                                    : Delta::Kind::arguments;
    out_.push_back({kind, std::move(packet.text), packet.call, {}});
  }
}

std::string ChatSample::finish_reason() const {
  switch (finish_) {
    case FinishReason::length: return "length";
    case FinishReason::cancelled: return "abort";
    default: return calls_ > 0 ? "tool_calls" : "stop";
  }
}

Json stop_reason_of(const Request& request, const Event& last) {
  if (last.finish != FinishReason::stop) return nullptr;
  if (!last.ids.empty() && std::ranges::find(request.stop_ids, last.ids.back()) != request.stop_ids.end()) {
    return last.ids.back();
  }
  if (std::ranges::find(request.stop, last.stop_reason) != request.stop.end()) return last.stop_reason;
  return nullptr;
}

}  // namespace m3::server
