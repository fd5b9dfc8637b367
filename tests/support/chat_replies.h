// Chat bodies, text as a model of M3's format writes it, and streams put together again.
#pragma once

#include <string>
#include <vector>

#include "tests/support/test_server.h"

namespace m3::test {

// A tool with a city (string) and days (integer).
Json weather_tool(const std::string& name);
// M3's spelling of a call of it, and of a block of calls.
std::string invoke(const std::string& name, const std::string& city);
std::string tool_block(const std::string& calls);

// One short user message, and what `more` adds or replaces.
Json chat_body(const Json& more = Json::object());

// Code points.
std::size_t characters(const std::string& text);

// Of one sample.
struct StreamedChat {
  std::string content, reasoning, finish;
  std::vector<Json> calls;  // id, name, arguments
  std::vector<std::string> content_parts, argument_parts;
  Json usage;
  int finishes = 0, usages = 0;
  bool done = false;
};

// Sends the body with "stream": true and checks the form: chunks of one id, content and reasoning never in one, one
// closing chunk, at most one usage chunk and behind it, then [DONE].
StreamedChat stream_chat(const TestServer& server, Json body, int sample = 0);

}  // namespace m3::test
