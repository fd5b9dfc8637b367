// Requests with pictures that take long, and what they and their bodies may hold meanwhile.
#include <gtest/gtest.h>

#include "tests/support/chat_replies.h"
#include "tests/support/pictures.h"
#include "tests/vision/raw_server.h"

namespace m3::server {
namespace {

using test::bitmap;
using test::data_url;
using test::eventually;
using test::HttpClient;
using test::HttpResponse;
using test::Json;
using test::RawServer;
using test::ScriptedEngine;
using test::TestServer;

Json image(const std::string& url) { return {{"type", "image_url"}, {"image_url", {{"url", url}}}}; }

Json ask(const Json& part) {
  return {{"messages", Json::array({{{"role", "user"},
                                     {"content", Json::array({part, {{"type", "text"}, {"text", "What is it?"}}})}}})}};
}

// Nothing of the server waits for a slow picture server, and who goes takes his work with him.
TEST(SlowPictures, HoldNobodyUpAndAreDroppedWithTheirClient) {
  RawServer silent([](const std::string&) { return std::string(); });
  ServerOptions options;
  options.worker_threads = 1;
  options.media.threads = 1;
  options.media.sources.web = true;
  options.media.sources.fetch.private_hosts = {silent.host()};
  options.media.sources.fetch.seconds = 600;
  std::atomic<int> asked = 0;
  TestServer server(
      [&](const Request&, int) {
        ++asked;
        return ScriptedEngine::Reply{"Hello."};
      },
      options);
  server.engine().set_media(test::media_info(server.server().model().tokenizer));
  const std::string slow = ask(image("http://" + silent.host() + "/a.png")).dump();
  HttpClient client = server.connect();
  client.send(test::request_bytes("POST", "/v1/chat/completions", slow));
  ASSERT_TRUE(eventually([&] { return silent.requests() == 1; }));
  EXPECT_EQ(server.server().generations().size(), 1U);
  server.json("/v1/chat/completions", test::chat_body());
  EXPECT_EQ(asked, 1);
  client.close();
  EXPECT_TRUE(eventually([&] { return server.server().media().waiting() == 0; }));
  EXPECT_TRUE(eventually([&] { return server.server().generations().size() == 0; }));
  EXPECT_EQ(asked, 1);

  // The same by its id.
  HttpClient other = server.connect();
  other.send(test::request_bytes("POST", "/v1/chat/completions", slow, {"X-Request-Id: slow"}));
  ASSERT_TRUE(eventually([&] { return silent.requests() == 2; }));
  server.json("/abort_requests", {{"request_ids", {"slow"}}});
  const HttpResponse response = other.receive();
  EXPECT_EQ(response.status, 503) << response.body;
  EXPECT_EQ(Json::parse(response.body)["error"]["code"].get<std::string>(), "cancelled");
}

TEST(SlowPictures, TheServersEndDoesNotWaitForThem) {
  RawServer silent([](const std::string&) { return std::string(); });
  ServerOptions options;
  options.media.sources.web = true;
  options.media.sources.fetch.private_hosts = {silent.host()};
  options.media.sources.fetch.seconds = 600;
  HttpClient client = [&] {
    TestServer server([](const Request&, int) { return ScriptedEngine::Reply{"Hello."}; }, options);
    server.engine().set_media(test::media_info(server.server().model().tokenizer));
    HttpClient connected = server.connect();
    connected.send(
        test::request_bytes("POST", "/v1/chat/completions", ask(image("http://" + silent.host() + "/a.png")).dump()));
    EXPECT_TRUE(eventually([&] { return silent.requests() == 1; }));
    return connected;
  }();
  EXPECT_EQ(client.receive().status, 0);
}

// Requests that wait for their pictures are in the queue like others.
TEST(SlowPictures, AreInTheQueue) {
  RawServer silent([](const std::string&) { return std::string(); });
  ServerOptions options;
  options.media.sources.web = true;
  options.media.sources.fetch.private_hosts = {silent.host()};
  options.media.sources.fetch.seconds = 600;
  options.media.most_waiting = 2;
  TestServer server([](const Request&, int) { return ScriptedEngine::Reply{"Hello."}; }, options);
  server.engine().set_media(test::media_info(server.server().model().tokenizer));
  const Json slow = ask(image("http://" + silent.host() + "/a.png"));
  HttpClient first = server.connect(), second = server.connect();
  first.send(test::request_bytes("POST", "/v1/chat/completions", slow.dump()));
  second.send(test::request_bytes("POST", "/v1/chat/completions", slow.dump()));
  ASSERT_TRUE(eventually([&] { return silent.requests() == 2; }));
  const HttpResponse refused = server.post("/v1/chat/completions", slow);
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_EQ(Json::parse(refused.body)["error"]["code"].get<std::string>(), "queue_full");
  const std::string metrics = server.get("/metrics").body;
  const std::size_t line = metrics.find("\nm3:num_requests_waiting{");
  ASSERT_NE(line, std::string::npos);
  EXPECT_EQ(metrics.substr(metrics.find("} ", line), 4), "} 2\n") << metrics.substr(line, 200);
  EXPECT_EQ(Json::parse(server.get("/load").body)["waiting"].get<int>(), 2);
  server.json("/v1/chat/completions", test::chat_body());  // text waits for no picture
  first.close();
  second.close();
  EXPECT_TRUE(eventually([&] { return server.server().media().open() == 0; }));
}

// What is held of large bodies is bounded, and given back as soon as they were read.
TEST(LargeBodies, TogetherHoldNoMoreThanTheyMay) {
  ServerOptions options;
  options.body_memory = std::size_t{3} << 20;
  TestServer server([](const Request&, int) { return ScriptedEngine::Reply{"Hello."}; }, options);
  HttpClient first = server.connect();
  const std::string head = "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2097154\r\n\r\n";
  const std::string text = "{\"prompt\": \"" + std::string((std::size_t{2} << 20) - 12, 'a') + "\"}";
  first.send(head + text.substr(0, text.size() - 1));
  // The one thread for bytes reads of every connection that has some, so the body is there after so many turns.
  for (int i = 0; i < 100; ++i) ASSERT_EQ(server.get("/health").status, 200);
  HttpResponse refused;
  ASSERT_TRUE(eventually([&] {
    refused = server.connect().request("POST", "/tokenize", text);
    return refused.status == 503;
  }));
  EXPECT_EQ(Json::parse(refused.body)["error"]["code"].get<std::string>(), "body_memory_full");
  EXPECT_EQ(server.post("/tokenize", {{"prompt", "small"}}).status, 200);
  first.send("}");
  EXPECT_EQ(first.receive().status, 200);
  EXPECT_TRUE(eventually([&] { return server.connect().request("POST", "/tokenize", text).status == 200; }));
}

TEST(PictureMemory, HasAWordOfItsOwn) {
  ServerOptions options;
  options.media.memory_bytes = 400'000;
  options.media.cache_bytes = 0;
  TestServer server(
      [](const Request&, int) {
        std::string text;
        for (int i = 0; i < 5000; ++i) text += "word ";
        return ScriptedEngine::Reply{text, std::chrono::milliseconds(10)};
      },
      options);
  server.engine().set_media(test::media_info(server.server().model().tokenizer));
  const auto picture = [](unsigned seed) { return ask(image(data_url(bitmap(112, 112, seed)))); };  // 301,056 bytes
  HttpClient first = server.connect();
  first.send(test::request_bytes("POST", "/v1/chat/completions", picture(1).dump()));
  ASSERT_TRUE(eventually([&] { return server.server().media().held_bytes() > 300'000; }));
  const HttpResponse refused = server.post("/v1/chat/completions", picture(2));
  EXPECT_EQ(refused.status, 503) << refused.body;
  EXPECT_EQ(Json::parse(refused.body)["error"]["code"].get<std::string>(), "media_memory_full");
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  first.close();
  EXPECT_TRUE(eventually([&] { return server.server().media().held_bytes() == 0; }));
  EXPECT_EQ(server.post("/tokenize", picture(2)).status, 200);
}

}  // namespace
}  // namespace m3::server
