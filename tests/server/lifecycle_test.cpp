// From loading to the end: health, draining, and an engine that dies.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <new>
#include <sstream>

#include "src/base/error.h"
#include "src/server/generation.h"
#include "src/server/sse.h"
#include "tests/support/small_engine.h"
#include "tests/support/test_server.h"

namespace m3::server {
namespace {

using test::HttpClient;
using test::Json;
using test::TestServer;

const Json chat = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}};

test::ScriptedEngine::Script slow_words(int words, std::chrono::milliseconds time) {
  return [=](const Request&, int) {
    std::string text;
    for (int i = 0; i < words; ++i) text += "word ";
    return test::ScriptedEngine::Reply{text, time};
  };
}

TEST(Lifecycle, ThePortIsOpenWhileTheModelLoads) {
  std::mutex mutex;
  std::condition_variable changed;
  bool go_on = false;
  Server server(test::test_options(), [&](const LoadProgress&) -> std::unique_ptr<Model> {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return go_on; });
    fail("the checkpoint is not there");
  });
  HttpClient client(server.port());
  EXPECT_EQ(client.request("GET", "/health").status, 503);
  EXPECT_EQ(Json::parse(client.request("GET", "/health").body)["status"], "loading");
  const auto refused = client.request("POST", "/v1/chat/completions", chat.dump());
  EXPECT_EQ(refused.status, 503);
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  EXPECT_TRUE(client.closed_by_server());  // its body was not read
  client = HttpClient(server.port());
  EXPECT_EQ(client.request("GET", "/metrics").status, 200);
  EXPECT_EQ(client.request("GET", "/version").status, 200);
  {
    const std::lock_guard lock(mutex);
    go_on = true;
  }
  changed.notify_all();
  EXPECT_THROW(server.wait_until_loaded(), Error);
  EXPECT_EQ(client.request("GET", "/health").status, 503);
  EXPECT_EQ(server.wait_for(std::chrono::seconds(5)), 1);
}

// A series of /metrics stays for ever, so what clients make up becomes none.
TEST(Lifecycle, MethodsMakeNoSeries) {
  const test::TestServer server([](const Request&, int) { return test::ScriptedEngine::Reply{"x"}; });
  for (int i = 0; i < 20; ++i) {
    HttpClient client = server.connect();
    EXPECT_EQ(client.request("MADEUP" + std::to_string(i), "/health").status, 405);
  }
  // Counted once the reply is away.
  std::string text, line;
  EXPECT_TRUE(test::eventually([&] {
    text = server.get("/metrics").body;
    const std::size_t at = text.find("method=\"other\"");
    line = at == std::string::npos ? "" : text.substr(at, text.find('\n', at) - at);
    return line.ends_with("} 20");
  })) << line;
  EXPECT_EQ(text.find("MADEUP"), std::string::npos);
}

// What goes wrong where a reply begins is the reply's error and not the program's end.
TEST(Lifecycle, AReplyThatCannotBeginIsAnError) {
  struct Writer : ReplyWriter {
    void begin() override { throw std::bad_alloc(); }
    void event(std::size_t, const Event&, Clock::time_point) override {}
    void finish() override {}
    void fail(const ApiError&) override {}
  };
  test::TestServer server([](const Request&, int) { return test::ScriptedEngine::Reply{"x"}; });
  const auto exchange = std::make_shared<Exchange>(
      HttpRequest(), [] {}, 1 << 20);
  Request request;
  request.prompt_ids = {5};
  start_generation(server.server(), exchange, request, std::make_unique<Writer>());
  EXPECT_TRUE(test::eventually([&] { return exchange->finished(); }));
  EXPECT_EQ(exchange->status(), 500);
}

std::optional<int> wait_for_end(Server& server) {
  std::optional<int> code;
  test::eventually([&] {
    code = server.wait_for(std::chrono::milliseconds(10));
    return code.has_value();
  });
  return code;
}

TEST(Lifecycle, ShutDownLetsRepliesFinish) {
  TestServer server(slow_words(60, std::chrono::milliseconds(5)));
  Json body = chat;
  body["stream"] = true;
  HttpClient client = server.connect(), probe = server.connect(), late = server.connect(), idle = server.connect();
  for (HttpClient* one : {&probe, &late, &idle}) EXPECT_EQ(one->request("GET", "/health").status, 200);
  client.send(test::request_bytes("POST", "/v1/chat/completions", body.dump()));
  ASSERT_EQ(client.receive_head().status, 200);
  server.server().shut_down();
  EXPECT_FALSE(server.server().wait_for(std::chrono::milliseconds(1)));
  // Connections that are open are told so, once.
  const auto health = probe.request("GET", "/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(Json::parse(health.body)["status"], "draining");
  EXPECT_EQ(health.headers.at("connection"), "close");
  EXPECT_TRUE(probe.closed_by_server());
  const auto refused = late.request("POST", "/v1/chat/completions", chat.dump());
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(Json::parse(refused.body)["error"]["code"], "shutting_down");
  EXPECT_EQ(refused.headers.at("connection"), "close");
  late.close();
  std::string text, last;
  while (const auto event = client.next_event()) last = *event;
  EXPECT_EQ(last, "[DONE]");
  client.close();
  EXPECT_EQ(wait_for_end(server.server()), 0);                                         // idle ones hold nothing up
  EXPECT_EQ(HttpClient(server.port(), false, 5).request("GET", "/health").status, 0);  // no new ones
}

TEST(Lifecycle, AnOpenServerWithoutAKeySaysSo) {
  for (const std::string host : {"0.0.0.0", "127.0.0.1"}) {
    for (const bool with_key : {false, true}) {
      ServerOptions options = test::test_options();
      options.host = host;
      options.log_level = "warning";
      if (with_key) options.api_keys = {"a key"};
      testing::internal::CaptureStderr();
      {
        const Server server(options, [](const LoadProgress&) -> std::unique_ptr<Model> { fail("no model"); });
      }
      const std::string said = testing::internal::GetCapturedStderr();
      EXPECT_EQ(said.find("everyone on the network") != std::string::npos, host == "0.0.0.0" && !with_key) << said;
    }
  }
}

// The value of http_requests_total for that status and route; 0 before the first.
double count_of(const TestServer& server, const std::string& route, int status) {
  const std::string text = server.get("/metrics").body;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("m3:http_requests_total{")) continue;
    if (line.find("\"" + route + "\"") == std::string::npos) continue;
    if (line.find("status=\"" + std::to_string(status) + "\"") == std::string::npos) continue;
    return std::stod(line.substr(line.rfind(' ')));
  }
  return 0;
}

// A client that closes as soon as it has the last event has the whole reply.
TEST(Lifecycle, WholeRepliesAreCountedAsSuch) {
  const TestServer server(slow_words(1, std::chrono::milliseconds(0)));
  constexpr int rounds = 50;
  const std::map<std::string, std::string> last_event = {
      {"/v1/chat/completions", "[DONE]"}, {"/v1/messages", "message_stop"}, {"/v1/responses", "response.completed"}};
  for (const auto& [path, last] : last_event) {
    Json body = path == "/v1/responses" ? Json{{"input", "hi"}} : chat;
    body["stream"] = true;
    if (path == "/v1/messages") body["max_tokens"] = 10;
    for (int i = 0; i < rounds; ++i) {
      HttpClient client = server.connect();
      client.send(test::request_bytes("POST", path, body.dump()));
      ASSERT_EQ(client.receive_head().status, 200);
      while (const auto event = client.next_event()) {
        if (event->find(last) != std::string::npos) break;
      }
      client.close();
    }
    EXPECT_TRUE(test::eventually([&] { return count_of(server, path, 200) == rounds; })) << path;
    EXPECT_EQ(count_of(server, path, 499), 0) << path;
  }
}

// There is no moment in between at which such a client could be taken for one that left before the end.
TEST(Lifecycle, TheLastEventAndTheEndAreOneStep) {
  const std::vector<std::function<void(SseStream&)>> ends = {
      [](SseStream& stream) { stream.done(); }, [](SseStream& stream) { stream.fail(ApiError(500, "no")); },
      [](SseStream& stream) {
        stream.send_last({{"type", "message_stop"}}, "message_stop");
      }};
  for (const auto& end : ends) {
    std::shared_ptr<Exchange> exchange;
    int pieces = 0;
    exchange = std::make_shared<Exchange>(
        HttpRequest(),
        [&] {
          const Exchange::Outgoing out = exchange->take();
          if (out.bytes.empty()) return;
          ++pieces;
          EXPECT_TRUE(out.ended) << out.bytes;
        },
        1 << 20);
    SseStream stream(exchange);
    stream.begin();
    end(stream);
    EXPECT_EQ(pieces, 1);
  }
}

// More than the system's buffers hold, so that most of it is never written.
TEST(Lifecycle, ARepliesRestThatNobodyTookIsLost) {
  const TestServer server(slow_words(1, std::chrono::milliseconds(0)));
  std::string text;
  while (text.size() < 6'000'000) text += "a b c ";
  HttpClient client = server.connect(test::patience, 4096);
  client.send(test::request_bytes("POST", "/tokenize", Json{{"prompt", text}}.dump()));
  ASSERT_EQ(client.receive_head().status, 200);
  client.close();
  EXPECT_TRUE(test::eventually([&] { return count_of(server, "/tokenize", 499) == 1; }));
  EXPECT_EQ(count_of(server, "/tokenize", 200), 0);
}

TEST(Lifecycle, LogAndMetricsAgreeOnClientsThatLeave) {
  ServerOptions options;
  options.log_json = true;
  options.log_level = "debug";
  testing::internal::CaptureStderr();
  double lost = 0;
  {
    TestServer server(slow_words(100'000, std::chrono::milliseconds(5)), options);
    for (const bool stream : {true, false}) {
      Json body = chat;
      body["stream"] = stream;
      HttpClient client = server.connect();
      client.send(test::request_bytes("POST", "/v1/chat/completions", body.dump()));
      if (stream) client.receive_head();
      EXPECT_TRUE(test::eventually([&] { return server.server().generations().size() == 1; }));
      client.close();
      EXPECT_TRUE(test::eventually([&] { return server.server().generations().size() == 0; }));
    }
    test::eventually([&] { return (lost = count_of(server, "/v1/chat/completions", 499)) == 2; });
  }
  EXPECT_EQ(lost, 2);
  std::istringstream lines(testing::internal::GetCapturedStderr());
  int seen = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json entry = Json::parse(line);
    if (entry["message"] != "request" || entry["path"] != "/v1/chat/completions") continue;
    ++seen;
    EXPECT_EQ(entry["status"], 499) << line;
    EXPECT_EQ(entry["gone"], true) << line;
  }
  EXPECT_EQ(seen, 2);
}

TEST(Lifecycle, ShutDownEndsWhatTakesTooLong) {
  ServerOptions options;
  options.shutdown_timeout = Seconds(0.2);
  TestServer server(slow_words(100'000, std::chrono::milliseconds(5)), options);
  HttpClient client = server.connect();
  client.send(test::request_bytes("POST", "/v1/chat/completions", chat.dump()));
  EXPECT_TRUE(test::eventually([&] { return server.server().generations().size() == 1; }));
  server.server().shut_down();
  EXPECT_EQ(wait_for_end(server.server()), 0);
  EXPECT_EQ(server.engine().cancelled, 1);
}

TEST(Lifecycle, ADeadEngineIsToldToAll) {
  TestServer server(slow_words(100'000, std::chrono::milliseconds(5)));
  Json body = chat;
  HttpClient whole = server.connect(), streamed = server.connect();
  whole.send(test::request_bytes("POST", "/v1/chat/completions", body.dump()));
  body["stream"] = true;
  streamed.send(test::request_bytes("POST", "/v1/chat/completions", body.dump()));
  ASSERT_EQ(streamed.receive_head().status, 200);
  EXPECT_TRUE(test::eventually([&] { return server.server().generations().size() == 2; }));
  server.engine().die();
  EXPECT_EQ(server.get("/health").status, 503);
  const auto refused = whole.receive();
  EXPECT_EQ(refused.status, 500);
  EXPECT_TRUE(Json::parse(refused.body).contains("error"));
  bool told = false;
  while (const auto event = streamed.next_event()) told |= event->find("\"error\"") != std::string::npos;
  EXPECT_TRUE(told);
  EXPECT_EQ(wait_for_end(server.server()), 1);
  EXPECT_EQ(server.server().state(), Server::State::failed);
}

// The engine that people run, whose thread ends at its 20th step.
TEST(Lifecycle, AnEngineThreadThatEndsIsToldToAll) {
  test::SmallOptions small;
  small.sequences = 1;
  small.before_step = [](std::int64_t step) {
    if (step == 20) fail("step 20 is one too many");
  };
  Server server(test::test_options(), [&](const LoadProgress&) {
    return std::make_unique<Model>(Model{test::small_engine(small),
                                         Tokenizer::load(std::string(M3_MODELS) + "/m3-tiny-chat"), std::nullopt, "",
                                         "small"});
  });
  server.wait_until_loaded();
  Json body = {{"prompt", {1, 2, 3}}, {"max_tokens", 500}, {"ignore_eos", true}, {"stream", true}};
  HttpClient streamed(server.port()), waiting(server.port());
  streamed.send(test::request_bytes("POST", "/v1/completions", body.dump()));
  ASSERT_EQ(streamed.receive_head().status, 200);
  body["stream"] = false;
  waiting.send(test::request_bytes("POST", "/v1/completions", body.dump()));
  std::string last, error;
  while (const auto event = streamed.next_event()) {
    if (event->find("\"error\"") != std::string::npos) error = *event;
    last = *event;
  }
  EXPECT_NE(error.find("step 20 is one too many"), std::string::npos) << error;
  EXPECT_EQ(last, "[DONE]");
  const auto refused = waiting.receive();
  EXPECT_GE(refused.status, 500);  // it may also have come too late to be queued
  EXPECT_TRUE(Json::parse(refused.body).contains("error")) << refused.body;
  HttpClient probe(server.port());
  EXPECT_EQ(probe.request("GET", "/health").status, 503);
  EXPECT_EQ(probe.request("POST", "/v1/completions", body.dump()).status, 503);
  probe.close();
  EXPECT_EQ(wait_for_end(server), 1);
}

}  // namespace
}  // namespace m3::server
