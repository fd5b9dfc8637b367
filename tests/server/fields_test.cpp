// Requests of tests/data/server/field_cases.json: each field works, or is refused by name.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/test_server.h"

namespace m3::server {
namespace {

using test::Json;

TEST(Fields, WorkOrAreRefusedByName) {
  const test::TestServer server([](const Request&, int) { return test::ScriptedEngine::Reply{"Hello there."}; });
  std::ifstream file(std::string(M3_TEST_DATA) + "/server/field_cases.json");
  const Json all = Json::parse(file);
  for (const auto& [path, cases] : all.items()) {
    test::HttpClient client = server.connect();
    for (const Json& one : cases) {
      const test::HttpResponse response = client.request("POST", path, one["body"].dump());
      SCOPED_TRACE(path + " " + one["body"].dump().substr(0, 300) + "\n" + response.body.substr(0, 500));
      EXPECT_EQ(response.status, one["status"].get<int>());
      EXPECT_FALSE(response.headers.at("x-request-id").empty());
      if (response.status != 200) {
        const Json error = Json::parse(response.body).at("error");
        EXPECT_FALSE(error.at("message").get<std::string>().empty());
        EXPECT_FALSE(error.at("type").get<std::string>().empty());
        if (one.contains("param")) {
          EXPECT_EQ(error.at("param"), one["param"]);
        }
        if (one.contains("code")) {
          EXPECT_EQ(error.at("code"), one["code"]);
        }
      }
    }
  }
}

TEST(Fields, UnknownOnesPassByFlag) {
  ServerOptions options;
  options.allow_unknown_fields = true;
  const test::TestServer server([](const Request&, int) { return test::ScriptedEngine::Reply{"Hello."}; }, options);
  server.json("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"from_the_future", 1}});
}

TEST(Fields, BodiesThatAreNoObjects) {
  const test::TestServer server([](const Request&, int) { return test::ScriptedEngine::Reply{"Hello."}; });
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += '[';
  for (const std::string& body : {std::string(""), std::string("{"), std::string("[]"), std::string("null"),
                                  std::string("\"a\""), deep, "{\"messages\":" + deep, std::string("{\"a\":\"\xff\"}"),
                                  std::string("{\"a\":\0}", 7), std::string("{\"messages\": NaN}")}) {
    const test::HttpResponse response = server.connect().request("POST", "/v1/chat/completions", body);
    EXPECT_EQ(response.status, 400) << body.substr(0, 50);
    EXPECT_TRUE(Json::parse(response.body).contains("error"));
  }
  EXPECT_EQ(server.get("/health").status, 200);
}

}  // namespace
}  // namespace m3::server
