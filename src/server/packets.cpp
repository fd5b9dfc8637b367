#include "src/server/packets.h"

#include <algorithm>

namespace m3::server {
namespace {

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, begins_character));
}

}  // namespace

void PacketJoiner::push(Channel channel, int call, std::string_view text, Time now, std::vector<Packet>& out) {
  if (text.empty()) return;
  if (!joins_) {
    out.push_back({channel, call, std::string(text)});
    return;
  }
  if (!waiting_.text.empty() && (waiting_.channel != channel || waiting_.call != call)) flush(out);
  if (waiting_.text.empty()) {
    waiting_.channel = channel;
    waiting_.call = call;
    since_ = now;
  }
  waiting_.text += text;
  waiting_characters_ += count_characters(text);
  const std::size_t reserve = channel == Channel::arguments ? least : 0;
  if (first_ || waiting_characters_ >= least + reserve) {
    std::string kept;
    if (reserve > 0 && waiting_characters_ >= least + reserve) kept = cut_tail(reserve);
    flush(out);
    waiting_characters_ = kept.empty() ? 0 : reserve;
    waiting_.text = std::move(kept);
    since_ = now;
  }
  tick(now, out);
}

// Takes the last characters off what waits.
std::string PacketJoiner::cut_tail(std::size_t count) {
  std::size_t begin = waiting_.text.size();
  for (std::size_t taken = 0; taken < count; ++taken) {
    while (!begins_character(waiting_.text[--begin])) {}
  }
  std::string tail = waiting_.text.substr(begin);
  waiting_.text.resize(begin);
  waiting_characters_ -= count;
  return tail;
}

void PacketJoiner::flush(std::vector<Packet>& out) {
  if (waiting_.text.empty()) return;
  first_ = false;
  std::size_t parts = (waiting_characters_ + most - 1) / most;
  std::size_t characters = waiting_characters_;
  std::string_view rest = waiting_.text;
  for (; parts > 0; --parts) {
    const std::size_t take = (characters + parts - 1) / parts;
    std::size_t end = 0;
    for (std::size_t taken = 0; end < rest.size(); ++end) {
      if (begins_character(rest[end]) && taken++ == take) break;
    }
    out.push_back({waiting_.channel, waiting_.call, std::string(rest.substr(0, end))});
    rest.remove_prefix(end);
    characters -= take;
  }
  waiting_.text.clear();
  waiting_characters_ = 0;
}

std::optional<PacketJoiner::Time> PacketJoiner::due() const {
  if (waiting_.text.empty()) return std::nullopt;
  return since_ + longest_wait;
}

void PacketJoiner::tick(Time now, std::vector<Packet>& out) {
  if (!waiting_.text.empty() && now >= since_ + longest_wait) flush(out);
}

}  // namespace m3::server
