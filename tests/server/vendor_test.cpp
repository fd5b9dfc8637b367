// What MiniMax's own verifier expects of every server of M3: its streaming, request and tool rules, one test each.
// docs/server.md lists them beside these names.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/support/chat_replies.h"

namespace m3::server {
namespace {

using test::characters;
using test::chat_body;
using test::HttpResponse;
using test::invoke;
using test::Json;
using test::stream_chat;
using test::StreamedChat;
using test::TestServer;
using test::tool_block;
using test::weather_tool;

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

Json message(const std::string& role, const Json& content) { return {{"role", role}, {"content", content}}; }

Json conversation(std::vector<Json> messages) { return {{"messages", std::move(messages)}}; }

Json call(const std::string& id, const std::string& arguments = "{}") {
  return {{"id", id}, {"type", "function"}, {"function", {{"name", "get_weather"}, {"arguments", arguments}}}};
}

Json calls(std::vector<Json> list) {
  return {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", std::move(list)}};
}

Json result(const std::string& id, const Json& content) {
  return {{"role", "tool"}, {"tool_call_id", id}, {"content", content}};
}

// A user's question, one call, and its result.
Json answered(const Json& content, const std::string& arguments = "{}") {
  Json body = conversation({message("user", "hi"), calls({call("c1", arguments)}), result("c1", content)});
  body["tools"] = Json::array({weather_tool("get_weather")});
  return body;
}

Json with_tools(std::vector<Json> tools, const Json& more = Json::object()) {
  Json body = chat_body(more);
  body["tools"] = std::move(tools);
  return body;
}

Json function(const std::string& name, const Json& more = Json::object()) {
  Json out = {{"type", "function"}, {"function", {{"name", name}}}};
  out["function"].update(more);
  return out;
}

Json every_type() {
  const Json nested = {{"type", "object"},
                       {"properties",
                        {{"a",
                          {{"type", "object"},
                           {"properties",
                            {{"b",
                              {{"type", "object"},
                               {"properties", {{"c", {{"type", "object"}, {"properties", Json::object()}}}}}}}}}}}}}};
  const Json properties = {{"text", {{"type", "string"}, {"enum", {"a", "b"}}}},
                           {"count", {{"type", "integer"}, {"minimum", 1}, {"maximum", 9}}},
                           {"share", {{"type", "number"}, {"minimum", 0}, {"exclusiveMaximum", 1}}},
                           {"flag", {{"type", "boolean"}}},
                           {"list", {{"type", "array"}, {"items", nested}}},
                           {"nested", nested}};
  return function("all_types", {{"parameters", {{"type", "object"}, {"properties", properties}}}});
}

// --- what is sent: answered, or refused with the right status

struct Rule {
  const char* name;
  Json body;
  std::vector<int> statuses;  // any of these
};

std::vector<Rule> request_rules() {
  const std::vector<int> served = {200}, refused = {400}, unknown = {404};
  std::vector<Json> thirty;
  for (int i = 0; i < 30; ++i) thirty.push_back(weather_tool("tool_" + std::to_string(i)));
  std::vector<Json> rounds = {message("system", "You are kind.")};
  for (int i = 0; i < 20; ++i) {
    rounds.push_back(message("user", "Question " + std::to_string(i)));
    if (i < 19) rounds.push_back(message("assistant", "Answer " + std::to_string(i)));
  }
  const auto thinking = [](const char* type) { return chat_body({{"thinking", {{"type", type}}}}); };
  const auto effort = [](const char* word) { return chat_body({{"reasoning_effort", word}}); };
  const Json named = {{"type", "function"}, {"function", {{"name", "get_weather"}}}};
  Json nobody = named;
  nobody["function"]["name"] = "nobody";
  const Json weather = weather_tool("get_weather");
  return {
      {"ContentString", conversation({message("user", "hi")}), served},
      {"ContentParts", conversation({message("user", {{{"type", "text"}, {"text", "hi"}}})}), served},
      {"AssistantContentNullBesideCalls", answered("sunny"), served},
      {"AssistantContentMissingBesideCalls",
       conversation({message("user", "hi"), {{"role", "assistant"}, {"tool_calls", {call("c1")}}}, result("c1", "x")}),
       served},
      {"TwoAssistantMessagesInARow",
       conversation({message("user", "a"), message("assistant", "b"), message("assistant", "c"), message("user", "d")}),
       served},
      {"UserContentEmptyList", conversation({message("user", Json::array())}), {200, 400}},
      {"UserContentNull", conversation({message("user", nullptr)}), {200, 400}},
      {"UserContentMissing", conversation({{{"role", "user"}}}), {200, 400}},
      {"RoleRoot", conversation({message("root", "r"), message("system", "s"), message("user", "hi")}), served},
      {"RootOnly", conversation({message("root", "You are Ann."), message("user", "hi")}), served},
      {"SystemOnly", conversation({message("system", "You are Ann."), message("user", "hi")}), served},
      {"ThinkingAdaptive", thinking("adaptive"), served},
      {"ThinkingEnabled", thinking("enabled"), served},
      {"ThinkingDisabled", thinking("disabled"), served},
      {"ThinkingOther", thinking("sometimes"), refused},
      {"ReasoningSplitFalse", chat_body({{"reasoning_split", false}}), served},
      {"EffortLow", effort("low"), served},
      {"EffortMedium", effort("medium"), served},
      {"EffortHigh", effort("high"), served},
      {"EffortXhigh", effort("xhigh"), served},
      {"EffortMax", effort("max"), served},
      {"EffortMinimal", effort("minimal"), served},
      {"EffortNone", effort("none"), served},
      {"EffortOther", effort("enormous"), {200, 400}},
      {"Temperature0", chat_body({{"temperature", 0}}), served},
      {"Temperature2", chat_body({{"temperature", 2}}), served},
      {"Temperature5", chat_body({{"temperature", 5.0}}), refused},
      {"TopP1", chat_body({{"top_p", 1}}), served},
      {"TopPSmall", chat_body({{"top_p", 0.01}}), served},
      {"TopP0", chat_body({{"top_p", 0}}), refused},
      {"TopPAbove1", chat_body({{"top_p", 1.5}}), refused},
      {"Seed", chat_body({{"seed", 42}}), served},
      {"MaxTokens1", chat_body({{"max_tokens", 1}}), served},
      {"MaxTokens0", chat_body({{"max_tokens", 0}}), {200, 400}},
      {"MaxTokensNegative", chat_body({{"max_tokens", -1}}), refused},
      {"MaxTokens512000", chat_body({{"max_tokens", 512'000}}), served},
      {"MaxTokens524288", chat_body({{"max_completion_tokens", 524'288}}), served},
      {"MaxTokensMillion", chat_body({{"max_tokens", 1'000'000}}), served},
      {"EmptyMessages", conversation({}), refused},
      {"UnknownRole", conversation({message("wizard", "hi")}), refused},
      {"UnknownModel", chat_body({{"model", "gpt-4"}}), unknown},
      {"ToolWithoutParameters", with_tools({function("now", {{"description", "the time"}})}), served},
      {"ToolWithoutDescription", with_tools({weather}), served},
      {"ThirtyTools", with_tools(thirty), served},
      {"ToolNamesWithDashAndDot", with_tools({function("a-b.c")}), served},
      {"SixTypesEnumsRangesNesting", with_tools({every_type()}), served},
      {"ToolChoiceNone", with_tools({weather}, {{"tool_choice", "none"}}), served},
      {"ToolChoiceAuto", with_tools({weather}, {{"tool_choice", "auto"}}), served},
      {"ToolChoiceRequired", with_tools({weather}, {{"tool_choice", "required"}}), served},
      {"ToolChoiceNamed", with_tools({weather}, {{"tool_choice", named}}), served},
      {"ToolChoiceThatDoesNotExist", with_tools({weather}, {{"tool_choice", nobody}}), refused},
      {"HistoryArgumentsEmpty", answered("sunny", "{}"), served},
      {"HistoryArgumentsOf10000Characters", answered("sunny", "{\"city\": \"" + repeated("x", 10'000) + "\"}"), served},
      {"HistoryArgumentsThatAreNotJson", answered("sunny", "{city:"), refused},
      {"ToolResultObject", answered({{"weather", "sunny"}}), refused},
      {"ToolResultParts", answered({{{"type", "text"}, {"text", "sunny"}}}), served},
      {"ToolResultEmpty", answered(""), served},
      {"ToolResultNull", answered(nullptr), served},
      {"ToolResultMissing",
       conversation({message("user", "hi"), calls({call("c1")}), {{"role", "tool"}, {"tool_call_id", "c1"}}}), served},
      {"ToolResultOf50000Characters", answered(repeated("word ", 10'000)), served},
      {"ToolResultJsonHtmlEmoji",
       answered("{\"a\": [1, \"<b>x</b>\"]} <script>1</script> 😀👩‍👩‍👧‍👦"), served},
      {"ToolResultIdThatMatchesNoCall",
       conversation({message("user", "hi"), calls({call("c1")}), result("c2", "sunny")}), refused},
      {"OnlySomeCallsAnswered",
       conversation({message("user", "hi"), calls({call("c1"), call("c2")}), result("c1", "sunny")}), refused},
      {"TwentyRounds", conversation(rounds), served},
      {"SystemPromptOf10000Tokens", conversation({message("system", repeated("w ", 10'000)), message("user", "hi")}),
       served},
      {"BeyondTheContext", conversation({message("user", repeated("w ", 200'000))}), refused},
  };
}

// The window of the published model is long; a script needs no memory for it.
class RequestRules : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    server = std::make_unique<TestServer>([](const Request& request, int) {
      EXPECT_FALSE(request.prompt_ids.empty());
      return test::ScriptedEngine::Reply{"Hello there, how are you?"};
    });
    server->engine().set_max_model_len(131'072);
  }
  static void TearDownTestSuite() { server.reset(); }
  static std::unique_ptr<TestServer> server;
};
std::unique_ptr<TestServer> RequestRules::server;

class OneRule : public RequestRules {
 public:
  explicit OneRule(Rule rule) : rule_(std::move(rule)) {}

  void TestBody() override {
    for (const bool streamed : {false, true}) {
      Json body = rule_.body;
      body["stream"] = streamed;
      const HttpResponse response = server->post("/v1/chat/completions", body);
      SCOPED_TRACE(body.dump().substr(0, 300) + "\n" + response.body.substr(0, 300));
      EXPECT_NE(std::ranges::find(rule_.statuses, response.status), rule_.statuses.end()) << response.status;
      EXPECT_TRUE(response.whole);
      EXPECT_FALSE(response.headers.at("x-request-id").empty());
      if (response.status == 200 && streamed) {
        EXPECT_EQ(response.events().back(), "[DONE]");
      } else if (response.status == 200) {
        EXPECT_FALSE(Json::parse(response.body).at("choices").at(0).at("finish_reason").is_null());
      } else {
        EXPECT_FALSE(Json::parse(response.body).at("error").at("message").get<std::string>().empty());
      }
    }
  }

 private:
  Rule rule_;
};

// One test a rule, under its name: RequestRules.<name>.
[[maybe_unused]] const bool registered = [] {
  for (const Rule& rule : request_rules()) {
    testing::RegisterTest("RequestRules", rule.name, nullptr, nullptr, __FILE__, __LINE__,
                          [rule]() -> RequestRules* { return new OneRule(rule); });
  }
  return true;
}();

TEST_F(RequestRules, AllSystemMessagesReachTheModel) {
  const Json rendered = server->json(
      "/v1/chat/render", conversation({message("root", "first words"), message("system", "second words"),
                                       message("user", "a"), message("system", "third words"), message("user", "b")}));
  const std::string prompt = rendered.at("prompt");
  for (const char* words : {"first words", "second words", "third words"}) {
    EXPECT_NE(prompt.find(words), std::string::npos) << words << " in " << prompt;
  }
}

TEST_F(RequestRules, ASystemPromptOf10000TokensIsCountedWhole) {
  const Json body = conversation({message("system", repeated("w ", 10'000)), message("user", "hi")});
  EXPECT_GE(server->json("/v1/chat/completions", body)["usage"]["prompt_tokens"].get<int>(), 10'000);
}

TEST_F(RequestRules, TheSecondNameOfMaxTokensWins) {
  const Json reply = server->json("/v1/chat/completions", chat_body({{"max_tokens", 1}, {"max_completion_tokens", 3}}));
  EXPECT_EQ(reply["usage"]["completion_tokens"], 3);
}

// Who sends requests cannot start the server with other flags.
TEST_F(RequestRules, ATooLongPromptIsToBeShortened) {
  const HttpResponse response =
      server->post("/v1/chat/completions", conversation({message("user", repeated("w ", 200'000))}));
  const std::string message = Json::parse(response.body)["error"]["message"];
  EXPECT_TRUE(message.ends_with("; shorten it")) << message;
  EXPECT_EQ(message.find("--"), std::string::npos) << message;
}

TEST_F(RequestRules, KeysAreAskedFor) {
  ServerOptions options;
  options.api_keys = {"right"};
  const TestServer closed([](const Request&, int) { return test::ScriptedEngine::Reply{"Hello."}; }, options);
  const auto status = [&](const std::vector<std::string>& headers) {
    const HttpResponse response = closed.connect().request("POST", "/v1/chat/completions", chat_body().dump(), headers);
    EXPECT_FALSE(response.headers.at("x-request-id").empty());
    return response.status;
  };
  EXPECT_EQ(status({}), 401);
  EXPECT_EQ(status({"Authorization: Bearer wrong"}), 401);
  EXPECT_EQ(status({"Authorization: Bearer right"}), 200);
}

// --- what comes back in a stream

class StreamRules : public testing::Test {
 protected:
  StreamRules() : server([this](const Request&, int) { return reply; }) {}
  // Shares of packets below 5 and above 200 characters.
  static double tiny(const std::vector<std::string>& parts) {
    return share(parts, [](std::size_t length) { return length < 5; });
  }
  static double huge(const std::vector<std::string>& parts) {
    return share(parts, [](std::size_t length) { return length > 200; });
  }
  static double share(const std::vector<std::string>& parts, const std::function<bool(std::size_t)>& counts) {
    const auto found = std::ranges::count_if(parts, [&](const std::string& part) { return counts(characters(part)); });
    return static_cast<double>(found) / static_cast<double>(std::max<std::size_t>(1, parts.size()));
  }
  test::ScriptedEngine::Reply reply{"Hello there."};
  TestServer server;
};

TEST_F(StreamRules, UsageIsTheLastChunkAndItsCountsArePositive) {
  const StreamedChat streamed = stream_chat(server, chat_body({{"stream_options", {{"include_usage", true}}}}));
  EXPECT_EQ(streamed.usages, 1);
  for (const char* count : {"prompt_tokens", "completion_tokens", "total_tokens"}) {
    EXPECT_GT(streamed.usage.at(count).get<int>(), 0) << count;
  }
  EXPECT_EQ(stream_chat(server, chat_body()).usages, 0);
}

TEST_F(StreamRules, DenseEmojiAreWholeWhereverTheyAreCut) {
  const std::string emoji = "😀👩‍👩‍👧‍👦🏳️‍🌈🇪🇺👍🏽";
  reply.text = repeated(emoji, 20);
  EXPECT_EQ(stream_chat(server, chat_body()).content, reply.text);
  for (int limit = 1; limit < 60; ++limit) {  // in the middle of a character, as tokens fall
    const Json body = chat_body({{"max_tokens", limit}});
    const StreamedChat streamed = stream_chat(server, body);
    EXPECT_EQ(streamed.content.find("\xEF\xBF\xBD"), std::string::npos) << limit;
    EXPECT_TRUE(reply.text.starts_with(streamed.content)) << limit;
    const Json whole = server.json("/v1/chat/completions", body)["choices"][0]["message"]["content"];
    EXPECT_EQ(whole.get<std::string>(), streamed.content);
  }
}

TEST_F(StreamRules, ContentPacketsHaveTheSizesThatAreCounted) {
  reply = {repeated(" story of a boat, 😀 and then some more words", 40), std::chrono::milliseconds(1)};
  const StreamedChat streamed = stream_chat(server, chat_body());
  EXPECT_LE(tiny(streamed.content_parts), 0.05);
  EXPECT_LE(huge(streamed.content_parts), 0.02);
  EXPECT_GT(streamed.content_parts.size(), 100u);
}

TEST_F(StreamRules, TheFirstPacketDoesNotWait) {
  reply = {"A b c d", std::chrono::seconds(30)};
  test::HttpClient client = server.connect();
  client.send(test::request_bytes("POST", "/v1/chat/completions", chat_body({{"stream", true}}).dump()));
  ASSERT_EQ(client.receive_head().status, 200);
  std::string content;
  while (content.empty()) {  // long before its second token
    const auto event = client.next_event();
    ASSERT_TRUE(event);
    content = Json::parse(*event)["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(server.server().generations().size(), 1u);
}

TEST_F(StreamRules, ShortArgumentsComeInFewPackets) {
  reply = {tool_block(invoke("get_weather", "Rome") + invoke("get_weather", "Buenos Aires, in Argentina")),
           std::chrono::milliseconds(1)};
  const StreamedChat streamed = stream_chat(server, with_tools({weather_tool("get_weather")}));
  ASSERT_EQ(streamed.calls.size(), 2u);
  EXPECT_EQ(huge(streamed.argument_parts), 0);
  EXPECT_LE(tiny(streamed.argument_parts), 0.2);
}

TEST_F(StreamRules, ArgumentsOf10000CharactersComeInPackets) {
  const std::string city = repeated("the sea and the wind ", 500);
  reply = {tool_block(invoke("get_weather", city))};
  const StreamedChat streamed = stream_chat(server, with_tools({weather_tool("get_weather")}));
  ASSERT_EQ(streamed.calls.size(), 1u);
  EXPECT_EQ(Json::parse(streamed.calls[0]["arguments"].get<std::string>()).at("city").get<std::string>(), city);
  EXPECT_LE(tiny(streamed.argument_parts), 0.05);
  EXPECT_LE(huge(streamed.argument_parts), 0.1);
}

// The value is not awaited: its beginning is here while the model is still writing it.
TEST_F(StreamRules, ArgumentsStreamInsideLongStringsAndNestedObjects) {
  const std::string n = "]<]minimax[>[", endless = repeated("wave ", 100'000);
  const Json nested = {
      {"type", "object"},
      {"properties", {{"inner", {{"type", "object"}, {"properties", {{"text", {{"type", "string"}}}}}}}}}};
  for (const std::string& text :
       {tool_block(invoke("get_weather", endless)),
        tool_block(fmt::format("{0}<invoke name=\"deep\">{0}<outer>{0}<inner>{0}<text>{1}", n, endless))}) {
    reply = {text, std::chrono::milliseconds(1)};
    const Json body =
        with_tools({weather_tool("get_weather"),
                    function("deep", {{"parameters", {{"type", "object"}, {"properties", {{"outer", nested}}}}}})},
                   {{"stream", true}});
    test::HttpClient client = server.connect();
    client.send(test::request_bytes("POST", "/v1/chat/completions", body.dump()));
    ASSERT_EQ(client.receive_head().status, 200);
    std::string arguments;
    while (arguments.find("wave wave wave") == std::string::npos) {
      const auto event = client.next_event();
      ASSERT_TRUE(event);
      const Json delta = Json::parse(*event)["choices"][0]["delta"];
      for (const Json& one : delta.value("tool_calls", Json::array())) {
        arguments += one.at("function").value("arguments", "");
      }
    }
    EXPECT_EQ(server.server().generations().size(), 1u);
    client.close();
    EXPECT_TRUE(test::eventually([&] { return server.server().generations().size() == 0; }));
  }
}

TEST_F(StreamRules, ParallelCallsHaveIndexesAndIds) {
  reply.text = tool_block(invoke("get_weather", "Rome") + invoke("other-tool.v2", "Oslo") + invoke("third", "Bonn"));
  const StreamedChat streamed =
      stream_chat(server, with_tools({weather_tool("get_weather"), weather_tool("other-tool.v2")}));
  ASSERT_EQ(streamed.calls.size(), 3u);  // the last was never declared
  std::set<std::string> ids;
  for (const Json& one : streamed.calls) ids.insert(one.at("id").get<std::string>());
  EXPECT_EQ(ids.size(), 3u);
  EXPECT_EQ(streamed.calls[1]["name"].get<std::string>(), "other-tool.v2");
  EXPECT_EQ(streamed.calls[2]["name"].get<std::string>(), "third");
  EXPECT_EQ(streamed.finish, "tool_calls");
}

TEST_F(StreamRules, ZeroArgumentCallsAreObjects) {
  const std::string n = "]<]minimax[>[";
  reply.text = tool_block(n + "<invoke name=\"now\">" + n + "</invoke>\n");
  const StreamedChat streamed = stream_chat(server, with_tools({function("now")}));
  ASSERT_EQ(streamed.calls.size(), 1u);
  EXPECT_EQ(streamed.calls[0]["arguments"].get<std::string>(), "{}");
}

TEST_F(StreamRules, LengthMeansTheLimitExactly) {
  reply.text = "one two three four five six seven eight nine ten";
  for (const int limit : {1, 2, 7}) {
    const StreamedChat streamed =
        stream_chat(server, chat_body({{"max_tokens", limit}, {"stream_options", {{"include_usage", true}}}}));
    EXPECT_EQ(streamed.finish, "length");
    EXPECT_EQ(streamed.usage["completion_tokens"].get<int>(), limit);
  }
}

// --- with the model that ships

TEST(ModelRules, TheSecondIdenticalPromptIsCached) {
  EngineOptions engine;
  engine.max_model_len = 1024;
  const TestServer server({}, engine);
  Json body = conversation({message("system", repeated("The sea is grey. ", 60)), message("user", "Is it?")});
  body.update({{"max_tokens", 4}, {"temperature", 0}});
  const Json cold = server.json("/v1/chat/completions", body), hot = server.json("/v1/chat/completions", body);
  EXPECT_EQ(cold["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>(), 0);
  EXPECT_GT(hot["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>(), 0);
  EXPECT_LE(hot["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>(),
            hot["usage"]["prompt_tokens"].get<int>());
  EXPECT_EQ(hot["choices"][0]["message"].dump(), cold["choices"][0]["message"].dump());
  body["stream_options"] = {{"include_usage", true}};
  const StreamedChat streamed = stream_chat(server, body);
  EXPECT_EQ(streamed.usage["prompt_tokens"].get<int>(), cold["usage"]["prompt_tokens"].get<int>());
  EXPECT_EQ(streamed.usage["total_tokens"].get<int>(),
            streamed.usage["prompt_tokens"].get<int>() + streamed.usage["completion_tokens"].get<int>());
}

TEST(ModelRules, RequiredAndNamedToolsFire) {
  const TestServer server;
  for (const Json& choice : {Json("required"), Json{{"type", "function"}, {"function", {{"name", "get_weather"}}}}}) {
    Json body = with_tools({weather_tool("get_weather")}, {{"tool_choice", choice}});
    body.update({{"max_tokens", 300}, {"temperature", 0}, {"thinking", {{"type", "disabled"}}}});
    const Json reply = server.json("/v1/chat/completions", body)["choices"][0];
    ASSERT_TRUE(reply["message"].contains("tool_calls")) << reply.dump();
    EXPECT_EQ(reply["message"]["tool_calls"][0]["function"]["name"].get<std::string>(), "get_weather");
  }
}

TEST(ModelRules, ToolChoiceNoneFiresNothing) {
  const TestServer server;
  Json body = with_tools({weather_tool("get_weather")}, {{"tool_choice", "none"}, {"max_tokens", 40}});
  body["messages"][0]["content"] = "What is the weather in Rome? Use the tool.";
  const Json reply = server.json("/v1/chat/completions", body)["choices"][0];
  EXPECT_FALSE(reply["message"].contains("tool_calls")) << reply.dump();
}

TEST(ModelRules, ContextsUpToTheWindowAreServed) {
  EngineOptions engine;
  engine.max_model_len = 1024;
  const TestServer server({}, engine);
  std::vector<int> ids(1023, 300);
  Json body = {{"prompt", ids}, {"max_tokens", 1'000'000}, {"ignore_eos", true}, {"temperature", 0}};
  const Json reply = server.json("/v1/completions", body);
  EXPECT_EQ(reply["usage"]["completion_tokens"].get<int>(), 1);
  EXPECT_EQ(reply["choices"][0]["finish_reason"].get<std::string>(), "length");
  body["prompt"].push_back(300);
  const HttpResponse beyond = server.post("/v1/completions", body);
  EXPECT_EQ(beyond.status, 400) << beyond.body;
}

}  // namespace
}  // namespace m3::server
