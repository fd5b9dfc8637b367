// Pictures in requests: MiniMax's own rules for them, one test each (docs/server.md lists them), the APIs' spellings, and
// what goes wrong with pictures.
#include <gtest/gtest.h>

#include <future>

#include "tests/support/chat_replies.h"
#include "tests/support/pictures.h"
#include "tests/support/temporary_directory.h"
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
using test::stream_chat;
using test::TestServer;
using test::vision_file;

Json image(const std::string& url, const Json& more = Json::object()) {
  Json part = {{"type", "image_url"}, {"image_url", {{"url", url}}}};
  part["image_url"].update(more);
  return part;
}

Json video(const std::string& url, const Json& more = Json::object()) {
  Json part = {{"type", "video_url"}, {"video_url", {{"url", url}}}};
  part["video_url"].update(more);
  return part;
}

Json text(const std::string& words) { return {{"type", "text"}, {"text", words}}; }

Json message(const std::string& role, const Json& content) { return {{"role", role}, {"content", content}}; }

Json ask(std::vector<Json> parts, const Json& more = Json::object()) {
  parts.push_back(text("What is it?"));
  Json body = {{"messages", Json::array({message("user", parts)})}};
  body.update(more);
  return body;
}

const std::string& png() {
  static const std::string bytes = vision_file("pictures/rgb-8.png");
  return bytes;
}

std::string http_reply(const std::string& body) {
  return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

// A server whose engine keeps what it is asked and says how many pictures it saw.
class PictureRules : public testing::Test {
 protected:
  explicit PictureRules(ServerOptions options = {}) : server_(script(), with_media(std::move(options))) {
    server_.engine().set_media(test::media_info(server_.server().model().tokenizer));
  }

  ScriptedEngine::Script script() {
    return [this](const Request& request, int) {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
      return ScriptedEngine::Reply{"I see " + std::to_string(request.media.size()) + " of them."};
    };
  }
  static ServerOptions with_media(ServerOptions options) {
    options.media.cache_bytes = 0;
    return options;
  }

  Request last() {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(requests_.empty());
    return requests_.empty() ? Request() : requests_.back();
  }
  std::size_t asked() {
    const std::lock_guard lock(mutex_);
    return requests_.size();
  }

  // Placeholders of the prompt that the engine got.
  std::int64_t tokens_of(const Request& request) const {
    const MediaInfo& info = server_.server().model().engine->info().media;
    return std::ranges::count_if(request.prompt_ids,
                                 [&](TokenId id) { return id == info.image_id || id == info.video_id; });
  }
  // Of the request with that one picture.
  std::int64_t tokens(const std::string& url, const Json& inside = Json::object(), const Json& body = Json::object()) {
    server_.json("/v1/chat/completions", ask({image(url, inside)}, body));
    return tokens_of(last());
  }

  // 400 with this field and these words; and the next request works.
  void refused(const Json& body, const std::string& param, const std::string& words, int status = 400) {
    const HttpResponse response = server_.post("/v1/chat/completions", body);
    EXPECT_EQ(response.status, status) << response.body;
    const Json error = Json::parse(response.body)["error"];
    EXPECT_EQ(error["param"].is_null() ? "" : error["param"].get<std::string>(), param) << response.body;
    EXPECT_NE(error["message"].get<std::string>().find(words), std::string::npos) << response.body;
    EXPECT_EQ(server_.json("/v1/chat/completions", ask({image(data_url(png()))}))["choices"][0]["message"]["content"]
                  .get<std::string>(),
              "I see 1 of them.");
  }

  std::mutex mutex_;
  std::vector<Request> requests_;
  mutable TestServer server_;
};

// --- the vendor's rules

TEST_F(PictureRules, TheFourFormatsByDataUrl) {
  const std::pair<const char*, const char*> formats[] = {{"pictures/rgb-8.png", "image/png"},
                                                         {"pictures/420.jpg", "image/jpeg"},
                                                         {"pictures/plain.gif", "image/gif"},
                                                         {"pictures/lossy.webp", "image/webp"}};
  for (const auto& [file, type] : formats) {
    const Json reply = server_.json("/v1/chat/completions", ask({image(data_url(vision_file(file), type))}));
    EXPECT_EQ(reply["choices"][0]["message"]["content"].get<std::string>(), "I see 1 of them.") << file;
    const Request request = last();
    ASSERT_EQ(request.media.size(), 1U);
    EXPECT_EQ(tokens_of(request), request.media[0].h * request.media[0].w / 4);
    EXPECT_EQ(reply["usage"]["prompt_tokens"].get<std::size_t>(), request.prompt_ids.size());
  }
}

TEST_F(PictureRules, InUserAndSystemMessagesAndSeveralTurns) {
  const auto picture = [](unsigned seed) { return image(data_url(bitmap(112, 112 + 28 * int(seed), seed))); };
  const Json body = {{"messages",
                      {message("user", Json::array({picture(1), text("a"), picture(2)})), message("assistant", "b"),
                       message("system", Json::array({text("s"), picture(0)})),
                       message("user", Json::array({text("c"), picture(3)}))}}};
  server_.json("/v1/chat/completions", body);
  const Request request = last();
  ASSERT_EQ(request.media.size(), 4U);
  // In the prompt's order: system text stands first.
  for (int i = 0; i < 4; ++i) EXPECT_EQ(request.media[static_cast<std::size_t>(i)].h, 8 + 2 * i);
}

TEST_F(PictureRules, WithToolsThinkingAndStreaming) {
  const Json body = ask({image(data_url(png()))}, {{"tools", Json::array({test::weather_tool("get_weather")})},
                                                   {"thinking", {{"type", "enabled"}}},
                                                   {"stream_options", {{"include_usage", true}}}});
  const test::StreamedChat streamed = stream_chat(server_, body);
  EXPECT_EQ(streamed.reasoning, "I see 1 of them.");
  Json whole = body;
  whole.erase("stream_options");
  EXPECT_EQ(streamed.usage["prompt_tokens"], server_.json("/v1/chat/completions", whole)["usage"]["prompt_tokens"]);
}

TEST_F(PictureRules, InToolResults) {
  const Json call = {{"id", "c1"}, {"type", "function"}, {"function", {{"name", "get_weather"}, {"arguments", "{}"}}}};
  Json body = {{"messages",
                {message("user", "hi"),
                 {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array({call})}},
                 {{"role", "tool"}, {"tool_call_id", "c1"}, {"content", Json::array({image(data_url(png()))})}}}}};
  server_.json("/v1/chat/completions", body);
  EXPECT_EQ(last().media.size(), 1U);
}

TEST_F(PictureRules, TheLongSideIsCappedAt2016ByDefault) {
  EXPECT_EQ(tokens(data_url(bitmap(3000, 2000))), 2016 / 28 * 1344 / 28);
  EXPECT_EQ(last().media[0].w, 2016 / 14);
}

TEST_F(PictureRules, MaxLongSidePixelGrowsTokensStrictly) {
  const std::string url = data_url(bitmap(2400, 1600));
  std::int64_t before = 0;
  for (const int side : {252, 504, 1008, 2016}) {
    const std::int64_t now = tokens(url, {{"max_long_side_pixel", side}});
    EXPECT_GT(now, before);
    EXPECT_EQ(now, tokens(url, Json::object(), {{"max_long_side_pixel", side}}));
    EXPECT_EQ(now, tokens(url, Json::object(), {{"mm_processor_kwargs", {{"max_long_side_pixel", side}}}}));
    before = now;
  }
  refused(ask({image(url, {{"max_long_side_pixel", 1000}})}), "messages[0].content[0].image_url.max_long_side_pixel",
          "multiple of 28");
  refused(ask({image(url)}, {{"max_long_side_pixel", 1000}}), "max_long_side_pixel", "multiple of 28");
}

TEST_F(PictureRules, AShortSideGrowsTo112) { EXPECT_EQ(tokens(data_url(bitmap(28, 28))), 16); }

TEST_F(PictureRules, TheLargestPictureIsTakenAndScaledDown) {
  server_.engine().set_max_model_len(20000);
  EXPECT_EQ(tokens(data_url(bitmap(3584, 3584))), 5184);
  EXPECT_EQ(tokens(data_url(bitmap(3584, 3584)), {{"max_long_side_pixel", 3584}}), 16384);
  EXPECT_EQ(tokens(data_url(bitmap(4000, 4000))), 5184);
}

TEST_F(PictureRules, EightToOneIsTaken) {
  EXPECT_EQ(tokens(data_url(bitmap(4000, 500))), 648);
  refused(ask({image(data_url(bitmap(4020, 20)))}), "messages[0].content[0]", "200");
}

TEST_F(PictureRules, DetailIsTaken) {
  const std::string url = data_url(bitmap(1200, 900));
  const std::int64_t usual = tokens(url);
  for (const char* word : {"high", "default", "auto"}) EXPECT_EQ(tokens(url, {{"detail", word}}), usual);
  EXPECT_LT(tokens(url, {{"detail", "low"}}), usual);
  refused(ask({image(url, {{"detail", "sharp"}})}), "messages[0].content[0].image_url.detail", "known are low");
}

TEST_F(PictureRules, TwoHundredPicturesAndNoMore) {
  std::vector<Json> parts(200, image(data_url(bitmap(28, 28))));
  server_.engine().set_max_model_len(20000);
  server_.json("/v1/chat/completions", ask(parts));
  EXPECT_EQ(last().media.size(), 200U);
  parts.push_back(parts.front());
  refused(ask(parts), "messages[0].content[200]", "more than the 200 pictures");
}

TEST_F(PictureRules, APictureOfThirtyMegabytes) {
  // Behind a PNG's end anything may follow.
  std::string large = png();
  large.resize(std::size_t{30} << 20, 'x');
  EXPECT_GT(tokens(data_url(large)), 0);
  large += 'x';
  refused(ask({image(data_url(large))}), "messages[0].content[0]", "more than the 31457280 bytes");
}

TEST_F(PictureRules, AMismatchedTypeIsTolerated) {
  EXPECT_EQ(tokens(data_url(png(), "image/jpeg")), tokens(data_url(png())));
  EXPECT_EQ(tokens(data_url(png(), "text/html")), tokens(data_url(png())));
}

TEST_F(PictureRules, CorruptDataIsRefused) {
  const std::string cut = png().substr(0, png().size() / 2);
  for (const std::string& url :
       {data_url(cut), data_url("no picture"), data_url(""), std::string("data:image/png;base64,@@"),
        data_url("<html></html>"), std::string("nonsense")}) {
    refused(ask({text("first"), image(url)}), "messages[0].content[1]", "");
  }
}

// --- videos

TEST_F(PictureRules, VideosWithTheirTimes) {
  const std::string url = data_url(vision_file("videos/h264.mp4"), "video/mp4");
  server_.json("/v1/chat/completions", ask({video(url)}));
  const Request request = last();
  ASSERT_EQ(request.media.size(), 1U);
  EXPECT_EQ(request.media[0].kind, Media::Kind::video);
  EXPECT_NE(server_.server().model().engine->decode(request.prompt_ids, false).find("]<]0.0 seconds[>["),
            std::string::npos);
  server_.json("/v1/chat/completions", ask({video(url, {{"fps", 5}})}));
  EXPECT_GT(last().media[0].t, request.media[0].t);
  server_.json("/v1/chat/completions", ask({video(url)}, {{"media_io_kwargs", {{"video", {{"num_frames", 2}}}}}}));
  EXPECT_EQ(last().media[0].t, 1);
  refused(ask({video(url, {{"fps", 7}})}), "messages[0].content[0].video_url.fps", "fps: 7 is not in [0.2, 5]");
  refused(ask({video(data_url(png()))}), "messages[0].content[0]", "not a video");
  refused(ask(std::vector<Json>(21, video(url))), "messages[0].content[20]", "more than the 20 videos");
}

// --- how else it can be written

TEST_F(PictureRules, OtherSpellingsInChats) {
  const std::string url = data_url(png());
  const Json spellings[] = {{{"type", "image_url"}, {"image_url", url}},
                            {{"type", "input_image"}, {"image_url", url}},
                            {{"type", "image"}, {"image", url}},
                            {{"type", "image"}, {"url", url}},
                            {{"type", "image"}, {"image_url", {{"url", url}}}},
                            {{"type", "image"}, {"source", {{"type", "base64"}, {"data", test::base64(png())}}}}};
  for (const Json& part : spellings) {
    server_.json("/v1/chat/completions", ask({part}));
    EXPECT_EQ(last().media.size(), 1U) << part.dump().substr(0, 60);
  }
  refused(ask({Json{{"type", "image"}}}), "messages[0].content[0]", "give image_url");
  refused(ask({Json{{"type", "image_url"}, {"image_url", {{"url", 5}}}}}), "messages[0].content[0].image_url.url",
          "string");
  refused(ask({Json{{"type", "image_url"}, {"image_url", 5}}}), "messages[0].content[0].image_url", "URL");
  refused(ask({image(url)}, {{"truncate_prompt_tokens", 5}}), "truncate_prompt_tokens", "pictures");
  refused(ask({image(url)}, {{"mm_processor_kwargs", {{"size", 1}}}}), "mm_processor_kwargs.size", "known are");
}

TEST_F(PictureRules, TheAreaRuleByRequest) {
  const std::string url = data_url(bitmap(1920, 1080));
  EXPECT_EQ(tokens(url), 2691);
  EXPECT_EQ(tokens(url, Json::object(), {{"size_rule", "area"}}), 576);
  EXPECT_EQ(tokens(url, Json::object(), {{"mm_processor_kwargs", {{"max_pixels", 451584}}}}), 576);
}

TEST_F(PictureRules, Responses) {
  const std::string url = data_url(png());
  const Json shown = {{"type", "input_image"}, {"image_url", url}, {"detail", "low"}};
  const Json question = {{"type", "input_text"}, {"text", "What is it?"}};
  const Json reply = server_.json(
      "/v1/responses", {{"input", Json::array({{{"role", "user"}, {"content", Json::array({shown, question})}}})}});
  EXPECT_EQ(last().media.size(), 1U);
  EXPECT_EQ(reply["usage"]["input_tokens"].get<std::size_t>(), last().prompt_ids.size());
  // The conversation goes on with its picture.
  server_.json("/v1/responses", {{"input", "And now?"}, {"previous_response_id", reply["id"]}});
  EXPECT_EQ(last().media.size(), 1U);

  const Json bad = {{"type", "input_image"}, {"image_url", "data:,x"}};
  const HttpResponse response = server_.post(
      "/v1/responses", {{"input", Json::array({{{"role", "user"}, {"content", "a"}},
                                               {{"role", "user"}, {"content", Json::array({question, bad})}}})}});
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(Json::parse(response.body)["error"]["param"].get<std::string>(), "input[1].content[1]") << response.body;
}

TEST_F(PictureRules, AnthropicBlocks) {
  const auto block = [](const std::string& data) {
    return Json{{"type", "image"}, {"source", {{"type", "base64"}, {"media_type", "image/png"}, {"data", data}}}};
  };
  const Json shown = block(test::base64(png()));
  const Json call = {{"type", "tool_use"}, {"id", "a"}, {"name", "look"}, {"input", Json::object()}};
  const auto body = [&](const Json& in_result) {
    const Json result = {
        {"type", "tool_result"}, {"tool_use_id", "a"}, {"content", Json::array({text("it:"), in_result})}};
    return Json{{"max_tokens", 50},
                {"messages",
                 {message("user", Json::array({shown, text("What is it?")})), message("assistant", Json::array({call})),
                  message("user", Json::array({result, text("a"), shown}))}}};
  };
  const Json reply = server_.json("/v1/messages", body(shown));
  EXPECT_EQ(last().media.size(), 3U);
  EXPECT_EQ(reply["usage"]["input_tokens"].get<std::size_t>(), last().prompt_ids.size());
  Json counted = body(shown);
  counted.erase("max_tokens");
  EXPECT_EQ(server_.json("/v1/messages/count_tokens", counted)["input_tokens"].get<std::size_t>(),
            last().prompt_ids.size());

  const HttpResponse response = server_.post("/v1/messages", body(block("AAAA")));
  EXPECT_EQ(response.status, 400);
  const Json error = Json::parse(response.body);
  EXPECT_EQ(error["type"].get<std::string>(), "error");
  EXPECT_EQ(error["error"]["message"].get<std::string>().find("messages[2].content[0].content[1]: "), 0U)
      << response.body;
}

TEST_F(PictureRules, PicturesAreCountedEverywhere) {
  const Json body = ask({image(data_url(bitmap(280, 280)))});
  server_.json("/v1/chat/completions", body);
  const std::vector<TokenId> ids = last().prompt_ids;
  EXPECT_EQ(server_.json("/tokenize", body)["tokens"].get<std::vector<TokenId>>(), ids);
  const Json rendered = server_.json("/v1/chat/render", body);
  EXPECT_EQ(rendered["token_ids"].get<std::vector<TokenId>>(), ids);
  EXPECT_NE(rendered["prompt"].get<std::string>().find("]<]image[>["), std::string::npos);
}

// A number that is wrong names itself, wherever it stands.
TEST_F(PictureRules, WrongNumbersNameTheirField) {
  const std::string url = data_url(png());
  refused(ask({image(url)}, {{"mm_processor_kwargs", {{"min_frames", 10000}}}}), "mm_processor_kwargs.min_frames",
          "10000 is more than max_frames 768");
  refused(ask({image(url)}, {{"min_pixels", 1000000000000}}), "min_pixels", "1000000000000 is not in");
  refused(ask({image(url)}, {{"mm_processor_kwargs", {{"max_long_side_pixel", 113}}}}),
          "mm_processor_kwargs.max_long_side_pixel", "113 is not a multiple");
  refused(ask({image(url)}, {{"max_tokens", 2.5}}), "max_tokens", "found 2.5");
  const Json shown = {{"type", "input_image"}, {"image_url", url}, {"detail", "sharp"}};
  const HttpResponse response =
      server_.post("/v1/responses", {{"input", Json::array({{{"role", "user"}, {"content", Json::array({shown})}}})}});
  EXPECT_EQ(Json::parse(response.body)["error"]["param"].get<std::string>(), "input[0].content[0].detail");
}

TEST_F(PictureRules, PlaceholdersWithoutPicturesAreRefused) {
  const Json prompt = {{"prompt", "]<]image[>[ hello"}, {"max_tokens", 2}};
  HttpResponse response = server_.post("/v1/completions", prompt);
  EXPECT_EQ(response.status, 400) << response.body;
  EXPECT_EQ(Json::parse(response.body)["error"]["param"].get<std::string>(), "prompt");
  EXPECT_NE(response.body.find("is the place of a picture"), std::string::npos) << response.body;
  response = server_.post("/v1/completions", {{"prompt", {"fine", "]<]video[>["}}});
  EXPECT_EQ(Json::parse(response.body)["error"]["param"].get<std::string>(), "prompt[1]");
}

TEST_F(PictureRules, APictureBehindTheTextThatIsContinued) {
  const Json picture = image(data_url(png()));
  Json body = {{"messages", {message("user", "Hello"), message("assistant", Json::array({picture, text("It is")}))}},
               {"continue_final_message", true}};
  server_.json("/v1/chat/completions", body);
  EXPECT_EQ(last().media.size(), 1U);
  body["messages"][1]["content"] = Json::array({text("It is"), picture});
  refused(body, "messages[1].content[1]", "continue_final_message");
}

TEST_F(PictureRules, APromptThatIsTooLong) {
  server_.engine().set_max_model_len(300);
  refused(ask({image(data_url(bitmap(1000, 1000)))}), "messages[0].content[0]", "context");
}

// A placeholder that a person types stays text.
TEST_F(PictureRules, TypedPlaceholdersArePlainText) {
  server_.json("/v1/chat/completions",
               ask({text("]<]image[>[ ]<]start of image[>["), image(data_url(bitmap(112, 112)))}));
  EXPECT_EQ(tokens_of(last()), 16);
}

// --- where they come from

class WebPictures : public PictureRules {
 protected:
  WebPictures() : PictureRules(options()) {}

  static RawServer& web() {
    static RawServer server([](const std::string& target) {
      if (target == "/a.png") return http_reply(png());
      if (target == "/silent") return std::string();
      if (target == "/html") return http_reply("<html></html>");
      if (target == "/away") return std::string("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/x\r\n\r\n");
      return std::string("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    });
    return server;
  }
  static ServerOptions options() {
    ServerOptions options;
    options.media.threads = 2;
    options.media.sources.web = true;
    options.media.sources.fetch.private_hosts = {web().host()};
    options.media.sources.fetch.domains = {"127.0.0.1"};
    options.media.sources.fetch.seconds = 8;
    options.media.sources.local_root = folder().path();
    return options;
  }
  static test::TemporaryDirectory& folder() {
    static test::TemporaryDirectory directory;
    return directory;
  }
  static std::string url(const std::string& target) { return "http://" + web().host() + target; }
};

TEST_F(WebPictures, AreFetched) {
  server_.json("/v1/chat/completions", ask({image(url("/a.png"))}));
  EXPECT_EQ(last().media.size(), 1U);
}

TEST_F(WebPictures, WhatCannotBeFetchedIsOneLine) {
  refused(ask({image(url("/none"))}), "messages[0].content[0]", "status 404");
  refused(ask({image(url("/html"))}), "messages[0].content[0]", "HTML");
  refused(ask({image(url("/away"))}), "messages[0].content[0]", "no public address");
  refused(ask({image(url("/silent"))}), "messages[0].content[0]", "within 8 seconds");
  refused(ask({image("http://127.0.0.1:1/a.png")}), "messages[0].content[0]", "no public address");
  refused(ask({image("http://example.org/a.png")}), "messages[0].content[0]", "not among the allowed");
  EXPECT_EQ(asked(), 6U);
}

TEST_F(WebPictures, FilesBelowTheFolderAlone) {
  test::write_file(folder() / "a.png", png());
  server_.json("/v1/chat/completions", ask({image("file://" + (folder() / "a.png").string())}));
  EXPECT_EQ(last().media.size(), 1U);
  for (const char* elsewhere : {"file:///etc/passwd", "file:///etc/none", "file:///"}) {
    refused(ask({image(elsewhere)}), "messages[0].content[0]", "no such file below the folder");
  }
}

TEST(NoPictures, AModelWithoutVisionSaysSo) {
  TestServer server([](const Request&, int) { return ScriptedEngine::Reply{"Hello."}; });
  const HttpResponse response = server.post("/v1/chat/completions", ask({text("a"), image(data_url(png()))}));
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(Json::parse(response.body)["error"]["param"].get<std::string>(), "messages[0].content[1]");
  EXPECT_NE(response.body.find("takes no pictures"), std::string::npos);
  EXPECT_EQ(server.post("/tokenize", ask({image(data_url(png()))})).status, 400);
  // The prompt can be looked at all the same; ids and text are the template's alone.
  const Json rendered = server.json("/v1/chat/render", ask({image(data_url(png()))}));
  EXPECT_NE(rendered["prompt"].get<std::string>().find("]<]image[>[What is it?"), std::string::npos);
  EXPECT_EQ(rendered["count"].get<std::size_t>(), rendered["token_ids"].size());
  const Json state = Json::parse(server.get("/page/state").body);
  EXPECT_EQ(state["images"], false);
  EXPECT_NE(state["no_pictures"].get<std::string>(), "");
}

// --- a real tower

TEST(SeeingModel, AnswersAboutPictures) {
  EngineOptions engine;
  engine.checkpoint = std::string(M3_MODELS) + "/m3-tiny-chat";
  engine.max_picture_patches = 2048;
  TestServer server({}, engine);
  const Json body =
      ask({image(data_url(bitmap(200, 150))),
           video(data_url(vision_file("videos/animation.gif"), "image/gif"), {{"max_long_side_pixel", 112}})},
          {{"max_tokens", 4}, {"temperature", 0}, {"logprobs", true}});
  const Json first = server.json("/v1/chat/completions", body);
  const Json again = server.json("/v1/chat/completions", body);
  EXPECT_EQ(first["choices"], again["choices"]);
  EXPECT_EQ(first["usage"]["prompt_tokens"], again["usage"]["prompt_tokens"]);
  const Statistics statistics = server.server().model().engine->statistics();
  EXPECT_EQ(statistics.media_encoded, 2);  // the second time the cache has them
  Json other = body;
  other["messages"][0]["content"][0] = image(data_url(bitmap(200, 150, 9)));
  EXPECT_NE(server.json("/v1/chat/completions", other)["choices"][0]["logprobs"], first["choices"][0]["logprobs"]);
  const HttpResponse large = server.post("/v1/chat/completions", ask({image(data_url(bitmap(1400, 1400)))}));
  EXPECT_EQ(large.status, 400);
  EXPECT_NE(large.body.find("--max-picture-patches"), std::string::npos) << large.body;
}

}  // namespace
}  // namespace m3::server
