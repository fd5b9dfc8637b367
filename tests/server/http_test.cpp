// HTTP itself: connections, limits, keys, CORS, TLS, and clients that mean no good.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <future>

#include "tests/support/temporary_directory.h"
#include "tests/support/test_server.h"

namespace m3::server {
namespace {

using test::HttpClient;
using test::HttpResponse;
using test::Json;
using test::TestServer;

const Json chat = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}};

test::ScriptedEngine::Reply hello(const Request&, int) { return {"Hello there, how are you today?"}; }

TEST(Http, ConnectionsAreKept) {
  const TestServer server(hello);
  HttpClient client = server.connect();
  for (int i = 0; i < 5; ++i) {
    const HttpResponse response = client.request("GET", "/v1/models");
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.headers.at("connection"), "keep-alive");
    EXPECT_EQ(client.request("POST", "/v1/chat/completions", chat.dump()).status, 200);
  }
  EXPECT_EQ(client.request("GET", "/health", "", {"Connection: close"}).headers.at("connection"), "close");
  EXPECT_TRUE(client.closed_by_server());
}

TEST(Http, PipelinedRequestsAreAnsweredInOrder) {
  const TestServer server(hello);
  HttpClient client = server.connect();
  std::string bytes;
  for (int i = 0; i < 20; ++i) {
    const std::vector<std::string> headers = {fmt::format("X-Request-Id: r{}", i)};
    bytes += i % 2 == 0 ? test::request_bytes("GET", "/health", "", headers)
                        : test::request_bytes("POST", "/v1/chat/completions", chat.dump(), headers);
  }
  client.send(bytes);
  for (int i = 0; i < 20; ++i) {
    const HttpResponse response = client.receive();
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.headers.at("x-request-id"), fmt::format("r{}", i));
  }
}

TEST(Http, PathsAndMethods) {
  const TestServer server(hello);
  EXPECT_EQ(server.get("/nowhere").status, 404);
  EXPECT_EQ(server.get("/v1/chat/completions").status, 405);
  for (const char* path :
       {"/../etc/passwd", "/v1/models/../../x", "//v1/models", "/v1/models/", "/%2e%2e/x", "/v1%2fmodels"}) {
    EXPECT_EQ(server.get(path).status, 404) << path;
  }
  EXPECT_EQ(server.get("/v1/models?x=1").status, 200);
  EXPECT_EQ(server.get("/v1/models/scripted").status, 200);
  EXPECT_EQ(server.get("/v1/models/other").status, 404);
  HttpClient client = server.connect();
  const HttpResponse head = client.request("HEAD", "/health");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(client.request("GET", "/health").status, 200);
}

TEST(Http, AMethodThatAPathDoesNotAnswer) {
  const TestServer server(hello);
  const HttpResponse refused = server.get("/v1/chat/completions");
  EXPECT_EQ(refused.status, 405);
  EXPECT_EQ(refused.headers.at("allow"), "POST, OPTIONS");
}

TEST(Http, NamesOfModelsMayHaveSlashesAndEscapes) {
  ServerOptions options;
  options.served_names = {"MiniMaxAI/MiniMax-M3", "a b%"};
  const TestServer server(hello, options);
  const auto id_of = [&](const std::string& name) {
    const HttpResponse response = server.get("/v1/models/" + name);
    return response.status == 200 ? Json::parse(response.body)["id"].get<std::string>() : response.body;
  };
  EXPECT_EQ(id_of("MiniMaxAI/MiniMax-M3"), "MiniMaxAI/MiniMax-M3");
  EXPECT_EQ(id_of("MiniMaxAI%2fMiniMax%2DM3"), "MiniMaxAI/MiniMax-M3");
  EXPECT_EQ(id_of("a%20b%"), "a b%");
  for (const char* name : {"MiniMaxAI", "MiniMaxAI/MiniMax-M3/x", "MiniMaxAI/MiniMax-M3/", "%ff", "%", "%zz"}) {
    EXPECT_EQ(server.get(std::string("/v1/models/") + name).status, 404) << name;
  }
}

// Probes must not find a server dead that is only busy.
TEST(Http, HealthIsSaidWhileAllWorkersAreBusy) {
  TestServer server(hello);
  std::promise<void> go_on;
  const std::shared_future<void> gate = go_on.get_future().share();
  for (int i = 0; i < 64; ++i) server.server().workers().post([gate] { gate.wait(); });
  EXPECT_EQ(server.get("/health").status, 200);
  EXPECT_EQ(server.get("/ping").status, 200);
  go_on.set_value();
  EXPECT_EQ(server.get("/v1/models").status, 200);
}

TEST(Http, RequestIds) {
  const TestServer server(hello);
  HttpClient client = server.connect();
  const auto id_of = [&](const std::string& given) {
    return client.request("GET", "/health", "", {fmt::format("X-Request-Id: {}", given)}).headers.at("x-request-id");
  };
  EXPECT_EQ(id_of("abc-1"), "abc-1");
  EXPECT_NE(id_of("two words"), "two words");
  EXPECT_NE(id_of(std::string(500, 'a')), std::string(500, 'a'));
}

TEST(Http, LimitsOfHeadsAndBodies) {
  ServerOptions options;
  options.body_limit = 100'000;
  const TestServer server(hello, options);
  EXPECT_EQ(server.connect().request("POST", "/tokenize", std::string(100'001, ' ')).status, 413);
  {  // said before a byte of it is sent
    HttpClient client = server.connect();
    client.send("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n");
    EXPECT_EQ(client.receive().status, 413);
  }
  {  // of unknown length
    HttpClient client = server.connect();
    client.send("POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    const std::string piece = fmt::format("4000\r\n{:16384}\r\n", "");
    for (int i = 0; i < 8 && client.send(piece); ++i) {}
    EXPECT_EQ(client.receive().status, 413);
  }
  std::vector<std::string> many;
  for (int i = 0; i < 10'000; ++i) many.emplace_back("A: b");
  EXPECT_EQ(server.connect().request("GET", "/health", "", many).status, 431);
  many.resize(300);
  EXPECT_EQ(server.connect().request("GET", "/health", "", many).status, 431);
  EXPECT_EQ(server.connect().request("GET", std::string(100'000, '/')).status, 431);
  EXPECT_EQ(server.get("/health").status, 200);
}

TEST(Http, ChunkedBodiesAndExpectations) {
  const TestServer server(hello);
  HttpClient client = server.connect();
  client.send("POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (const char* piece : {"5\r\n{\"pro\r\n", "a\r\nmpt\":\"abc\"\r\n", "1\r\n}\r\n", "0\r\n\r\n"}) client.send(piece);
  EXPECT_EQ(client.receive().status, 200);
  client.send("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\nExpect: 100-continue\r\n\r\n");
  client.send("{\"prompt\":\"a\"}");
  EXPECT_EQ(client.receive().status, 200);
}

TEST(Http, WhatIsNoHttpIsRefused) {
  const TestServer server(hello);
  const std::string zero("GET /he\0alth HTTP/1.1\r\nHost: x\r\n\r\n", 34);
  for (const std::string& bytes :
       {std::string("hello\r\n\r\n"), std::string("GET /health HTTP/9.9\r\n\r\n"), zero,
        std::string("GET /health HTTP/1.1\r\nHost: x\r\nA\r\n\r\n"), std::string("GET /health HTTP/1.1\r\n\r\n"),
        std::string("GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"),
        std::string("GET http:// HTTP/1.1\r\nHost: x\r\n\r\n"),
        std::string("GET http:///health HTTP/1.1\r\nHost: x\r\n\r\n"),
        std::string("GET /health#c HTTP/1.1\r\nHost: x\r\n\r\n"),
        std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 13),
        std::string("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n"),
        std::string("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n"),
        std::string("POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n")}) {
    HttpClient client = server.connect();
    client.send(bytes);
    EXPECT_EQ(client.receive().status, 400) << bytes;
  }
  EXPECT_EQ(server.get("/health").status, 200);
}

TEST(Http, OldVersion) {
  const TestServer server(hello);
  HttpClient client = server.connect();
  Json body = chat;
  body["stream"] = true;
  client.send(fmt::format("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: {}\r\n\r\n{}", body.dump().size(),
                          body.dump()));
  const HttpResponse response = client.receive();
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.events().back(), "[DONE]");
}

TEST(Http, SlowHeadsAndBodiesEnd) {
  ServerOptions options;
  options.header_timeout = Seconds(0.3);
  options.idle_timeout = Seconds(0.3);
  options.keep_alive_timeout = Seconds(0.3);
  const TestServer server(hello, options);
  HttpClient head = server.connect(), body = server.connect(), idle = server.connect();
  head.send("GET /health HT");
  body.send("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{");
  for (int i = 0; i < 6; ++i) {  // a byte from time to time does not make it longer
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    head.send("x");
  }
  EXPECT_EQ(head.receive().status, 408);
  EXPECT_EQ(body.receive().status, 408);
  EXPECT_EQ(idle.receive().status, 0);
  EXPECT_EQ(server.get("/health").status, 200);
}

TEST(Http, KeysAreAskedFor) {
  ServerOptions options;
  options.api_keys = {"first-key", "second-key"};
  const TestServer server(hello, options);
  const auto status = [&](const std::string& path, const std::vector<std::string>& headers) {
    return server.connect().request("GET", path, "", headers).status;
  };
  EXPECT_EQ(status("/health", {}), 200);
  EXPECT_EQ(status("/v1/models", {}), 401);
  EXPECT_EQ(status("/v1/models", {"Authorization: Bearer first"}), 401);
  EXPECT_EQ(status("/v1/models", {"Authorization: Bearer "}), 401);
  EXPECT_EQ(status("/v1/models", {"Authorization: first-key"}), 401);
  EXPECT_EQ(status("/v1/models", {"Authorization: Bearer first-key"}), 200);
  EXPECT_EQ(status("/v1/models", {"authorization: bearer second-key"}), 200);
  EXPECT_EQ(status("/v1/models", {"x-api-key: second-key"}), 200);
  EXPECT_EQ(status("/v1/models", {"Authorization: Bearer wrong", "x-api-key: second-key"}), 200);
  EXPECT_EQ(status("/v1/models", {"Authorization: Bearer first-key", "x-api-key: wrong"}), 200);
  EXPECT_EQ(status("/v1/models", {"Authorization: Bearer wrong", "x-api-key: wrong"}), 401);
  const HttpResponse refused = server.get("/v1/models");
  EXPECT_EQ(Json::parse(refused.body)["error"]["type"], "authentication_error");
  // Refused before its body is read.
  HttpClient client = server.connect();
  client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n");
  EXPECT_EQ(client.receive().status, 401);
}

TEST(Http, Cors) {
  const TestServer open(hello);
  const HttpResponse preflight = open.connect().request(
      "OPTIONS", "/v1/chat/completions", "",
      {"Origin: http://a.example", "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: x-y"});
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.headers.at("access-control-allow-origin"), "*");
  EXPECT_EQ(preflight.headers.at("access-control-allow-methods"), "POST");
  EXPECT_EQ(preflight.headers.at("access-control-allow-headers"), "x-y");
  ServerOptions options;
  options.allowed_origins = {"http://a.example"};
  const TestServer server(hello, options);
  const auto allowed = [&](const std::string& origin) {
    return server.connect()
        .request("GET", "/v1/models", "", {fmt::format("Origin: {}", origin)})
        .headers.contains("access-control-allow-origin");
  };
  EXPECT_TRUE(allowed("http://a.example"));
  EXPECT_FALSE(allowed("http://b.example"));
}

TEST(Http, RootPath) {
  ServerOptions options;
  options.root_path = "/m3";
  const TestServer server(hello, options);
  EXPECT_EQ(server.get("/m3/health").status, 200);
  EXPECT_EQ(server.get("/health").status, 200);
  EXPECT_EQ(server.get("/m3x/health").status, 404);
}

TEST(Http, Tls) {
  const test::TemporaryDirectory files;
  const std::string key = (files / "key.pem").string(), certificate = (files / "cert.pem").string();
  const std::string command = "openssl req -x509 -newkey rsa:2048 -nodes -keyout " + key + " -out " + certificate +
                              " -days 2 -subj /CN=localhost 2>/dev/null";
  if (std::system(command.c_str()) != 0) GTEST_SKIP() << "the openssl program is not here";
  ServerOptions options;
  options.ssl_certificate = certificate;
  options.ssl_key = key;
  const TestServer server(hello, options);
  HttpClient client = server.connect();
  EXPECT_EQ(client.request("GET", "/health").status, 200);
  Json body = chat;
  body["stream"] = true;
  const HttpResponse streamed = client.request("POST", "/v1/chat/completions", body.dump());
  EXPECT_EQ(streamed.events().back(), "[DONE]");
  HttpClient plain(server.port());
  plain.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(plain.receive().status, 0);
  EXPECT_EQ(client.request("GET", "/health").status, 200);
}

TEST(Http, AClientThatGoesCancelsItsRequest) {
  TestServer server([](const Request&, int) {
    std::string text;
    for (int i = 0; i < 1000; ++i) text += "word ";
    return test::ScriptedEngine::Reply{text, std::chrono::milliseconds(5)};
  });
  for (const bool stream : {true, false}) {
    Json body = chat;
    body["stream"] = stream;
    const int before = server.engine().cancelled;
    HttpClient client = server.connect();
    client.send(test::request_bytes("POST", "/v1/chat/completions", body.dump()));
    EXPECT_TRUE(test::eventually([&] { return server.server().generations().size() == 1; }));
    client.close();
    EXPECT_TRUE(test::eventually([&] { return server.engine().cancelled == before + 1; }));
    EXPECT_TRUE(test::eventually([&] { return server.server().generations().size() == 0; }));
  }
}

// Its reply waits in a queue with a limit, and the others get theirs.
TEST(Http, AReaderThatDoesNotReadIsCutOff) {
  ServerOptions options;
  options.queue_limit = 200'000;
  options.served_names = {std::string(4000, 'm')};  // in every packet: few of them fill the sockets' own buffers
  TestServer server(
      [](const Request& request, int) {
        if (request.samples == 1) return hello(request, 0);
        std::string text;
        for (int i = 0; i < 4'000; ++i) text += "word ";
        // Slowly, so that there is something to cancel when the packets so far have filled the queue.
        return test::ScriptedEngine::Reply{text, std::chrono::milliseconds(4)};
      },
      options);
  Json body = chat;
  body["stream"] = true;
  body["n"] = 2;
  HttpClient slow = server.connect(60, 4096);
  slow.send(test::request_bytes("POST", "/v1/chat/completions", body.dump()));
  EXPECT_TRUE(test::eventually([&] { return server.engine().cancelled == 2; }))
      << server.engine().cancelled << " cancelled, " << server.server().generations().size() << " replies going on, "
      << server.engine().statistics().running << " samples running";
  EXPECT_EQ(server.post("/v1/chat/completions", chat).status, 200);
  EXPECT_FALSE(slow.receive().whole);
}

TEST(Http, AFullQueueIsSaid) {
  TestServer server(hello);
  server.engine().most_waiting = 0;
  const HttpResponse response = server.post("/v1/chat/completions", chat);
  EXPECT_EQ(response.status, 503);
  EXPECT_TRUE(response.headers.contains("retry-after"));
  EXPECT_EQ(Json::parse(response.body)["error"]["code"], "queue_full");
}

// Bytes of this process in memory that no file stands behind.
std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("RssAnon:")) return 1024 * std::stoll(line.substr(8));
  }
  return 0;
}

// The system has it back once it is read, while the reply is still made.
TEST(Http, ALargeBodyLeavesNoMemoryBehind) {
  if (test::under_sanitizer) GTEST_SKIP() << "sanitizers keep freed memory";
  TestServer server([](const Request&, int) {
    return test::ScriptedEngine::Reply{"a b c d", std::chrono::minutes(10)};
  });
  std::int64_t before = 0;
  HttpClient client = server.connect();
  {
    // A million small values and then spaces: memory of many small pieces, and one large one.
    std::string body = R"({"prompt": "hi", "metadata": [0)";
    for (int i = 0; i < 1'000'000; ++i) body += ",[]";
    body += "]" + std::string(std::size_t{16} << 20, ' ') + "}";
    before = resident_bytes() - std::ssize(body);
    client.send(test::request_bytes("POST", "/v1/completions", body));
  }
  ASSERT_TRUE(test::eventually([&] { return server.engine().statistics().running == 1; }));
  EXPECT_TRUE(test::eventually([&] { return resident_bytes() - before < (std::int64_t{12} << 20); }))
      << (resident_bytes() - before) / 1e6 << " MB";
}

}  // namespace
}  // namespace m3::server
