// One streamed request, read as it comes.
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

#include "src/cli/bench_serve.h"

namespace m3::cli {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using Json = nlohmann::ordered_json;

// An event of the stream; false when it was the last.
bool take_event(const std::string& event, double now, double& previous, LoadRecord& record) {
  const std::string mark = "data: ";
  const std::size_t at = event.find(mark);
  if (at == std::string::npos) return true;
  const std::string data = event.substr(at + mark.size());
  if (data == "[DONE]") return false;
  const Json chunk = Json::parse(data);
  if (const auto error = chunk.find("error"); error != chunk.end()) {
    record.error = error->value("message", "an error event without a message");
    return false;
  }
  if (const auto usage = chunk.find("usage"); usage != chunk.end() && usage->is_object()) {
    record.prompt_tokens = usage->value("prompt_tokens", std::int64_t{0});
    record.output_tokens = usage->value("completion_tokens", std::int64_t{0});
    if (const auto details = usage->find("prompt_tokens_details"); details != usage->end() && details->is_object()) {
      record.cached_tokens = details->value("cached_tokens", std::int64_t{0});
    }
  }
  const auto choices = chunk.find("choices");
  if (choices == chunk.end() || choices->empty()) return true;
  const Json& choice = choices->front();
  const Json& part = choice.contains("delta") ? choice["delta"] : choice;
  bool text = part.contains("tool_calls");
  for (const char* name : {"text", "content", "reasoning_content", "reasoning"}) {
    const auto found = part.find(name);
    text |= found != part.end() && found->is_string() && !found->get_ref<const std::string&>().empty();
  }
  if (!text) return true;
  if (record.first == 0) {
    record.first = now;
  } else {
    record.gaps.push_back(now - previous);
  }
  previous = record.ended = now;
  return true;
}

asio::ip::tcp::socket connect(asio::io_context& context, const LoadTarget& target) {
  asio::ip::tcp::socket socket(context);
  asio::connect(socket, asio::ip::tcp::resolver(context).resolve(target.host, target.port));
  return socket;
}

void run(const LoadTarget& target, const std::string& body, double (*now)(), LoadRecord& record) {
  asio::io_context context;
  asio::ip::tcp::socket socket = connect(context, target);
  socket.set_option(asio::ip::tcp::no_delay(true));
  http::request<http::string_body> request(http::verb::post, target.path, 11);
  request.set(http::field::host, target.host + ":" + target.port);
  request.set(http::field::content_type, "application/json");
  request.set(http::field::connection, "close");
  if (!target.key.empty()) request.set(http::field::authorization, "Bearer " + target.key);
  request.body() = body;
  request.prepare_payload();
  record.started = record.ended = now();
  http::write(socket, request);

  boost::beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(boost::none);
  http::read_header(socket, buffer, parser);
  const unsigned status = parser.get().result_int();
  std::string text;
  double previous = 0;
  bool more = true;
  while (more && !parser.is_done()) {
    http::read_some(socket, buffer, parser);
    text += std::exchange(parser.get().body(), {});
    const double time = now();
    if (status != 200) continue;
    std::size_t begin = 0;
    for (std::size_t end; more && (end = text.find("\n\n", begin)) != std::string::npos; begin = end + 2) {
      more = take_event(text.substr(begin, end - begin), time, previous, record);
    }
    text.erase(0, begin);
  }
  if (status != 200) {
    const Json reply = Json::parse(text, nullptr, false);
    const bool told = reply.is_object() && reply.contains("error") && reply["error"].is_object();
    record.error = "status " + std::to_string(status) + (told ? ": " + reply["error"].value("message", "") : "");
  } else if (more && record.error.empty()) {
    record.error = "the stream ended before its [DONE]";
  }
}

}  // namespace

bool answers(const LoadTarget& target) try {
  asio::io_context context;
  connect(context, target);
  return true;
} catch (const boost::system::system_error&) {
  return false;
}

LoadRecord stream_request(const LoadTarget& target, const std::string& body, double (*now)()) {
  LoadRecord record;
  try {
    run(target, body, now, record);
  } catch (const std::exception& problem) {
    record.error = problem.what();
  }
  return record;
}

}  // namespace m3::cli
