// Requests of tests/data/server/field_cases.json: each field works, or is refused by name.
#include <gtest/gtest.h>

#include <fstream>

#include "src/base/error.h"
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

TEST(Fields, HugeListsAreRefusedOrServed) {
  const test::TestServer server([](const Request&, int) { return test::ScriptedEngine::Reply{"Hello."}; });
  const auto status = [&](const char* field, const Json& value) {
    Json body = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}};
    body[field] = value;
    return server.post("/v1/chat/completions", body).status;
  };
  Json every_id = Json::object(), strangers = Json::object();
  for (int id = 0; id < 4000; ++id) every_id[std::to_string(id)] = id % 100;
  for (int id = 0; id < 300'000; ++id) strangers[std::to_string(id)] = 1;
  EXPECT_EQ(status("logit_bias", every_id), 200);
  EXPECT_EQ(status("logit_bias", strangers), 400);
  EXPECT_EQ(status("stop", std::vector<std::string>(100'000, "x")), 400);
  EXPECT_EQ(status("stop", std::string(1'000'000, 'x')), 400);
  EXPECT_EQ(status("stop_token_ids", std::vector<int>(100'000, 1)), 400);
  EXPECT_EQ(status("bad_words", std::vector<std::string>(100'000, "x")), 400);
  EXPECT_EQ(status("allowed_token_ids", std::vector<int>(1'000'000, 1)), 400);
  EXPECT_EQ(status("n", 1'000'000'000), 400);
  EXPECT_EQ(status("n", 1e300), 400);
  EXPECT_EQ(status("max_tokens", std::numeric_limits<std::int64_t>::max()), 200);
  EXPECT_EQ(status("seed", std::numeric_limits<std::uint64_t>::max()), 400);
  EXPECT_EQ(status("messages", std::vector<int>(100'000, 1)), 400);
  const test::HttpResponse prompts =
      server.post("/v1/completions", {{"prompt", std::vector<std::string>(1025, "a")}, {"n", 64}});
  EXPECT_EQ(prompts.status, 400);
  EXPECT_NE(prompts.body.find("at most 65536"), std::string::npos) << prompts.body;
}

// What a client wrote comes back shortened, whole characters only.
TEST(Fields, LongNamesAreNotRepeatedInFull) {
  const test::TestServer server([](const Request&, int) { return test::ScriptedEngine::Reply{"Hello."}; });
  std::string name;
  while (name.size() < 3'000'000) name += "é";
  const Json messages = {{{"role", "user"}, {"content", "hi"}}};
  const Json role = {{{"role", name}, {"content", "hi"}}};
  const Json tool = {{"type", "function"}, {"function", {{"name", name}}}};
  for (const Json& body : {Json{{"messages", messages}, {name, 1}}, Json{{"messages", messages}, {"model", name}},
                           Json{{"messages", role}}, Json{{"messages", messages}, {"reasoning_effort", name}},
                           Json{{"messages", messages}, {"structured_outputs", {{name, 1}}}},
                           Json{{"messages", messages}, {"tool_choice", tool}}}) {
    const test::HttpResponse response = server.post("/v1/chat/completions", body);
    EXPECT_TRUE(response.status == 400 || response.status == 404) << response.status;
    EXPECT_LT(response.body.size(), 3000u);
    EXPECT_EQ(response.body.find("\xef\xbf\xbd"), std::string::npos) << response.body;
    EXPECT_NE(response.body.find("éé..."), std::string::npos) << response.body;
  }
}

TEST(Fields, UnknownNamesInsideOthersPassByFlag) {
  ServerOptions options;
  options.allow_unknown_fields = true;
  const test::TestServer server([](const Request&, int) { return test::ScriptedEngine::Reply{"Hello."}; }, options);
  server.json("/v1/chat/completions",
              {{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"thinking", {{"from_the_future", 1}}}});
}

TEST(Fields, DefaultsOfTheTemplateAreCheckedAtTheStart) {
  ServerOptions options = test::test_options();
  const auto problem = [&](const std::string& defaults) -> std::string {
    options.default_template_arguments = defaults;
    try {
      const test::TestServer server([](const Request&, int) { return test::ScriptedEngine::Reply{"Hello."}; }, options);
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  };
  EXPECT_EQ(problem(R"({"thinking_mode": "disabled", "other": 1})"), "");
  for (const char* wrong : {R"({"thinking_mode": "on"})", R"({"enable_thinking": "no"})", R"({"messages": []})",
                            R"({"enable_thinking": true, "thinking_mode": "disabled"})", "[]", "{"}) {
    EXPECT_TRUE(problem(wrong).starts_with("--default-chat-template-kwargs")) << wrong << ": " << problem(wrong);
  }
}

TEST(Fields, BodiesThatAreNoObjects) {
  const test::TestServer server([](const Request&, int) { return test::ScriptedEngine::Reply{"Hello."}; });
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += '[';
  const auto message = [&](const std::string& body) {
    const test::HttpResponse response = server.connect().request("POST", "/v1/chat/completions", body);
    return Json::parse(response.body)["error"]["message"].get<std::string>();
  };
  EXPECT_EQ(message(R"({"temperature": 1e999})").find("json.exception"), std::string::npos);
  EXPECT_NE(message(R"({"temperature": 1e999})").find("1e999"), std::string::npos);
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
