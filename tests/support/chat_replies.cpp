#include "tests/support/chat_replies.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace m3::test {

namespace {

constexpr const char* name_space = "]<]minimax[>[";

}  // namespace

Json weather_tool(const std::string& name) {
  return {
      {"type", "function"},
      {"function",
       {{"name", name},
        {"parameters",
         {{"type", "object"}, {"properties", {{"city", {{"type", "string"}}}, {"days", {{"type", "integer"}}}}}}}}}};
}

std::string invoke(const std::string& name, const std::string& city) {
  const std::string n = name_space;
  return n + "<invoke name=\"" + name + "\">" + n + "<city>" + city + n + "</city>" + n + "<days>3" + n + "</days>" +
         n + "</invoke>\n";
}

std::string tool_block(const std::string& calls) {
  const std::string n = name_space;
  return n + "<tool_call>\n" + calls + n + "</tool_call>";
}

Json chat_body(const Json& more) {
  Json body = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  body.update(more);
  return body;
}

std::size_t characters(const std::string& text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

StreamedChat stream_chat(const TestServer& server, Json body, int sample) {
  body["stream"] = true;
  const HttpResponse response = server.post("/v1/chat/completions", body);
  EXPECT_EQ(response.status, 200) << response.body;
  EXPECT_TRUE(response.whole);
  EXPECT_TRUE(response.headers.at("content-type").starts_with("text/event-stream"));
  StreamedChat out;
  std::string id;
  for (const std::string& event : response.events()) {
    EXPECT_FALSE(out.done) << "after [DONE]: " << event;
    if (event == "[DONE]") {
      out.done = true;
      continue;
    }
    const Json chunk = Json::parse(event);
    EXPECT_EQ(chunk.at("object"), "chat.completion.chunk");
    if (id.empty()) id = chunk.at("id");
    EXPECT_EQ(chunk.at("id"), id);
    EXPECT_EQ(out.usages, 0) << "after the usage chunk: " << event;
    if (chunk.at("choices").empty()) {
      out.usage = chunk.at("usage");
      ++out.usages;
      continue;
    }
    const Json& choice = chunk["choices"][0];
    if (choice.at("index") != sample) continue;
    EXPECT_EQ(out.finishes, 0) << "after the closing chunk: " << event;
    const Json& delta = choice.at("delta");
    const std::string content = delta.value("content", ""), reasoning = delta.value("reasoning_content", "");
    EXPECT_TRUE(content.empty() || reasoning.empty()) << event;
    out.content += content;
    out.reasoning += reasoning;
    if (!content.empty()) out.content_parts.push_back(content);
    for (const Json& call : delta.value("tool_calls", Json::array())) {
      const auto index = call.at("index").get<std::size_t>();
      if (call.contains("id")) {
        EXPECT_EQ(index, out.calls.size());
        out.calls.push_back({{"id", call["id"]}, {"name", call["function"]["name"]}, {"arguments", ""}});
      }
      const std::string piece = call["function"].value("arguments", "");
      if (!piece.empty()) out.argument_parts.push_back(piece);
      out.calls.at(index)["arguments"].get_ref<std::string&>() += piece;
    }
    if (!choice.at("finish_reason").is_null()) {
      ++out.finishes;
      out.finish = choice["finish_reason"];
    }
  }
  EXPECT_TRUE(out.done);
  EXPECT_EQ(out.finishes, 1);
  return out;
}

}  // namespace m3::test
