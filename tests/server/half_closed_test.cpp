// Clients that close their sending side after the request and wait for the reply, beside those that have gone.
#include <gtest/gtest.h>

#include "tests/support/test_server.h"

namespace m3::server {
namespace {

using test::HttpClient;
using test::HttpResponse;
using test::Json;
using test::TestServer;

Json chat_body(bool stream) { return {{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"stream", stream}}; }

test::ScriptedEngine::Script words(int count, std::chrono::milliseconds time) {
  return [=](const Request&, int) {
    std::string text;
    for (int i = 0; i < count; ++i) text += "word ";
    return test::ScriptedEngine::Reply{text, time};
  };
}

TEST(HalfClosed, EveryReplyComesWhole) {
  const TestServer server(words(20, std::chrono::milliseconds(20)));
  for (const bool stream : {true, false}) {
    HttpClient client = server.connect();
    client.send(test::request_bytes("POST", "/v1/chat/completions", chat_body(stream).dump()));
    client.end_of_requests();
    const HttpResponse reply = client.receive();
    EXPECT_EQ(reply.status, 200);
    EXPECT_TRUE(reply.whole);
    if (stream) {
      EXPECT_EQ(reply.events().back(), "[DONE]");
    } else {
      EXPECT_EQ(Json::parse(reply.body)["choices"][0]["finish_reason"], "stop");
    }
    EXPECT_TRUE(client.closed_by_server());
  }
}

// Asked every second meanwhile whether they still read.
TEST(HalfClosed, ALongSilenceIsBridged) {
  const TestServer server(words(2, std::chrono::milliseconds(1500)));
  for (const bool stream : {true, false}) {
    HttpClient client = server.connect();
    client.send(test::request_bytes("POST", "/v1/chat/completions", chat_body(stream).dump()));
    client.end_of_requests();
    const HttpResponse reply = client.receive();
    EXPECT_EQ(reply.status, 200);
    EXPECT_TRUE(reply.whole);
  }
}

TEST(HalfClosed, AllRequestsThatWereSentAreAnswered) {
  const TestServer server(words(3, std::chrono::milliseconds(5)));
  HttpClient client = server.connect();
  std::string bytes;
  for (int i = 0; i < 5; ++i)
    bytes += test::request_bytes("POST", "/v1/chat/completions", chat_body(i % 2 == 0).dump());
  client.send(bytes + test::request_bytes("GET", "/health"));
  client.end_of_requests();
  for (int i = 0; i < 6; ++i) EXPECT_EQ(client.receive().status, 200) << i;
  EXPECT_TRUE(client.closed_by_server());
}

TEST(HalfClosed, HalfARequestIsNone) {
  TestServer server(words(1, std::chrono::milliseconds(0)));
  HttpClient client = server.connect();
  const std::string bytes = test::request_bytes("POST", "/v1/chat/completions", chat_body(false).dump());
  client.send(bytes.substr(0, bytes.size() - 3));
  client.end_of_requests();
  EXPECT_TRUE(client.closed_by_server());
  EXPECT_EQ(server.server().generations().size(), 0u);
}

// The first half of a close and the whole of one look alike until something is sent.
TEST(HalfClosed, WhoClosesAltogetherIsFoundOut) {
  TestServer server(words(100'000, std::chrono::milliseconds(5)));
  for (const bool end_first : {true, false}) {
    for (const bool stream : {true, false}) {
      const int before = server.engine().cancelled;
      HttpClient client = server.connect();
      client.send(test::request_bytes("POST", "/v1/chat/completions", chat_body(stream).dump()));
      if (end_first) client.end_of_requests();
      EXPECT_TRUE(test::eventually([&] { return server.server().generations().size() == 1; }));
      client.close();
      EXPECT_TRUE(test::eventually([&] { return server.engine().cancelled == before + 1; }));
      EXPECT_TRUE(test::eventually([&] { return server.server().generations().size() == 0; }));
    }
  }
}

// Before any byte of the reply: the first token takes a minute here.
TEST(HalfClosed, WhoGoesBeforeTheFirstTokenIsFoundOut) {
  TestServer server(words(3, std::chrono::minutes(1)));
  for (const bool stream : {true, false}) {
    HttpClient first = server.connect();
    first.send(test::request_bytes("POST", "/v1/chat/completions", chat_body(stream).dump()));
    EXPECT_TRUE(test::eventually([&] { return server.server().generations().size() == 1; }));
    first.close();
    EXPECT_TRUE(test::eventually([&] { return server.server().generations().size() == 0; }));
  }
}

// HTTP/1.0 has no interim replies, so its end of bytes is the client's end.
TEST(HalfClosed, OldClientsThatCloseHaveGone) {
  TestServer server(words(100'000, std::chrono::milliseconds(5)));
  const std::string body = chat_body(false).dump();
  HttpClient client = server.connect();
  client.send("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
              body);
  EXPECT_TRUE(test::eventually([&] { return server.server().generations().size() == 1; }));
  client.close();
  EXPECT_TRUE(test::eventually([&] { return server.engine().cancelled == 1; }));
}

TEST(Targets, WithTheirHostAsProxiesSendThem) {
  const TestServer server(words(1, std::chrono::milliseconds(0)));
  HttpClient client = server.connect();
  for (const char* target : {"http://somewhere:8000/v1/models", "HTTP://somewhere/v1/models?x=1", "https://a/v1/models",
                             "/v1/models", "http://somewhere", "http://somewhere/?x=/y", "http://somewhere?x=1"}) {
    EXPECT_EQ(client.request("GET", target).status, 200) << target;
  }
  EXPECT_EQ(client.request("POST", "http://somewhere/v1/chat/completions", chat_body(false).dump()).status, 200);
  for (const char* target :
       {"http://somewhere/nowhere", "ftp://somewhere/v1/models", "http:/v1/models", "*", "somewhere:8000"}) {
    EXPECT_EQ(client.request("GET", target).status, 404) << target;
  }
}

}  // namespace
}  // namespace m3::server
