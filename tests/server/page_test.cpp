// The page: what is sent, with which headers, and what its panel is told.
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "src/server/page.h"
#include "tests/support/test_server.h"

namespace m3::server {
namespace {

using test::HttpResponse;
using test::Json;
using test::TestServer;

test::ScriptedEngine::Script hello() {
  return [](const Request&, int) { return test::ScriptedEngine::Reply{"Hello."}; };
}

std::string text_of(const PageFile& file) { return {file.bytes.begin(), file.bytes.end()}; }

TEST(Page, EveryFileIsServedUnderAStrictPolicy) {
  ServerOptions options;
  options.api_keys = {"sesame"};  // the page itself is open: it asks for the key
  const TestServer server(hello(), options);
  ASSERT_GE(embedded_page_files().size(), 10U);
  for (const PageFile& file : embedded_page_files()) {
    const std::string name(file.name);
    const HttpResponse response = server.get(name == "index.html" ? "/" : "/page/" + name);
    EXPECT_EQ(response.status, 200) << name;
    EXPECT_EQ(response.body, text_of(file)) << name;
    const std::string policy = response.headers.at("content-security-policy");
    EXPECT_NE(policy.find("default-src 'none'"), std::string::npos);
    EXPECT_EQ(policy.find("unsafe"), std::string::npos);
    EXPECT_EQ(policy.find("http"), std::string::npos);
    EXPECT_EQ(response.headers.at("x-content-type-options"), "nosniff");
    EXPECT_EQ(response.headers.at("content-type").starts_with("text/html"), name.ends_with(".html"));
  }
  for (const char* path : {"/page/none.js", "/page/../page.h", "/page/%2e%2e", "/page/"}) {
    EXPECT_EQ(server.get(path).status, 404) << path;
  }
}

// Nothing of it comes from elsewhere, nothing is inline, and no text ever becomes markup or code.
TEST(Page, NeedsNothingThatThePolicyForbids) {
  const std::regex address("(src|href)=\"(https?:)?//"), handler("<[^>]*\\son[a-z]+="), style("<[^>]*\\sstyle=");
  for (const PageFile& file : embedded_page_files()) {
    const std::string text = text_of(file);
    for (const char* word :
         {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"}) {
      EXPECT_EQ(text.find(word), std::string::npos) << file.name << ": " << word;
    }
    if (!file.name.ends_with(".html")) continue;
    EXPECT_FALSE(std::regex_search(text, address)) << file.name;
    EXPECT_FALSE(std::regex_search(text, handler)) << file.name;
    EXPECT_FALSE(std::regex_search(text, style)) << file.name;
    EXPECT_EQ(text.find("<style"), std::string::npos);
  }
}

// What index.html and the modules name is there.
TEST(Page, NamesOnlyFilesThatExist) {
  std::set<std::string> names;
  for (const PageFile& file : embedded_page_files()) names.emplace(file.name);
  const std::regex in_page("\"page/([a-z.]+)\""), import("from \"\\./([a-z.]+)\"");
  for (const PageFile& file : embedded_page_files()) {
    const std::string text = text_of(file);
    for (const std::regex* pattern : {&in_page, &import}) {
      for (std::sregex_iterator found(text.begin(), text.end(), *pattern), end; found != end; ++found) {
        const std::string name = (*found)[1];
        if (name != "state") {
          EXPECT_TRUE(names.contains(name)) << file.name << " names " << name;
        }
      }
    }
  }
}

TEST(Page, StateNeedsTheKeyAndTellsOfTheServer) {
  ServerOptions options;
  options.api_keys = {"sesame"};
  const TestServer server(hello(), options);
  EXPECT_EQ(server.get("/page/state").status, 401);
  const HttpResponse response = server.connect().request("GET", "/page/state", "", {"Authorization: Bearer sesame"});
  ASSERT_EQ(response.status, 200) << response.body;
  const Json state = Json::parse(response.body);
  EXPECT_EQ(state["status"], "ready");
  EXPECT_EQ(state["model"], "scripted");
  EXPECT_EQ(state["chat"], true);
  EXPECT_EQ(state["running"], 0);
  EXPECT_EQ(state["cache_pages"], 64);
}

}  // namespace
}  // namespace m3::server
