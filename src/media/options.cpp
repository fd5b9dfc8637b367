#include "src/media/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <thread>

#include "src/base/error.h"
#include "src/base/memory_size.h"
#include "src/chat/request_fields.h"
#include "src/chat/template/json.h"
#include "src/media/members.h"
#include "src/tokenizer/utf8.h"

namespace m3::media {
namespace {

using chat::Kind;
using chat::Value;
using vision::SizeRule;

constexpr int detail_low = 504, detail_high = 2016, detail_default_video = 1008;

template <typename Integer>
std::optional<Integer> integer(const Value& object, const std::string& path, const char* name) {
  const Value* value = member(object, name);
  if (value == nullptr) return std::nullopt;
  if (!value->is(Kind::integer)) {
    const bool number = value->is(Kind::floating);
    fail("{}{}: expected a whole number, found {}", path, name,
         number ? fmt::format("{}", value->as_double()) : std::string(chat::json_type(*value)));
  }
  const std::int64_t number = value->as_int();
  if (number < 1 || number > std::numeric_limits<Integer>::max()) fail("{}{}: {} is out of range", path, name, number);
  return static_cast<Integer>(number);
}

std::string word(const Value& object, const std::string& path, const char* name) {
  const Value* value = member(object, name);
  if (value == nullptr) return {};
  if (!value->is(Kind::string)) fail("{}{}: expected a string, found {}", path, name, chat::json_type(*value));
  return value->bytes();
}

std::optional<double> number(const Value& object, const std::string& path, const char* name) {
  const Value* value = member(object, name);
  if (value == nullptr) return std::nullopt;
  if (!value->is(Kind::integer) && !value->is(Kind::floating)) {
    fail("{}{}: expected a number, found {}", path, name, chat::json_type(*value));
  }
  return value->as_double();
}

const Value* object_member(const Value& object, const std::string& path, const char* name) {
  const Value* value = member(object, name);
  if (value != nullptr && !value->is(Kind::dict)) {
    fail("{}{}: expected an object, found {}", path, name, chat::json_type(*value));
  }
  return value;
}

constexpr std::array<std::string_view, 9> known = {"size_rule",           "min_pixels",   "max_pixels",
                                                   "max_long_side_pixel", "fps",          "min_frames",
                                                   "max_frames",          "total_pixels", "detail"};

Sizing read_members(const Value& object, const std::string& path) {
  Sizing out;
  if (const std::string rule = word(object, path, "size_rule"); !rule.empty()) {
    if (rule != "area" && rule != "long-side" && rule != "long_side") {
      fail("{}size_rule: unknown rule '{}'; known are long-side and area", path, shortened(rule));
    }
    out.rule = rule == "area" ? SizeRule::area : SizeRule::long_side;
  }
  out.min_pixels = integer<std::int64_t>(object, path, "min_pixels");
  out.max_pixels = integer<std::int64_t>(object, path, "max_pixels");
  out.max_long_side = integer<int>(object, path, "max_long_side_pixel");
  out.fps = number(object, path, "fps");
  out.min_frames = integer<int>(object, path, "min_frames");
  out.max_frames = integer<int>(object, path, "max_frames");
  out.total_pixels = integer<std::int64_t>(object, path, "total_pixels");
  out.detail = word(object, path, "detail");
  if (out.detail == "auto") out.detail.clear();
  if (!out.detail.empty() && out.detail != "low" && out.detail != "high" && out.detail != "default") {
    fail("{}detail: unknown '{}'; known are low, high, default and auto", path, shortened(out.detail));
  }
  for (const std::string_view name : known) {
    if (member(object, name) != nullptr) out.said.emplace(name, fmt::format("{}{}", path, name));
  }
  return out;
}

// The rule that the bounds belong to.
void check_rule(const Sizing& sizing, const std::string& path) {
  const bool area = sizing.min_pixels || sizing.max_pixels;
  if (area && sizing.max_long_side) {
    fail("{}max_long_side_pixel: of the long-side rule, and min_pixels and max_pixels are of the area rule; give one",
         path);
  }
  if (area && sizing.rule == SizeRule::long_side) {
    fail("{}{}: of the area rule, and size_rule is long-side", path, sizing.max_pixels ? "max_pixels" : "min_pixels");
  }
  if (sizing.max_long_side && sizing.rule == SizeRule::area) {
    fail("{}max_long_side_pixel: of the long-side rule, and size_rule is area", path);
  }
}

std::string where(const Sizing& sizing, const char* name) {
  const auto found = sizing.said.find(name);
  return found == sizing.said.end() ? name : found->second;
}

// What was said is to blame, not what it does not go with.
void check_bounds(const Sizing& sizing, const vision::SizeOptions& size) {
  const auto check_area = [&](const char* name, const std::optional<std::int64_t>& pixels) {
    if (!pixels || *pixels <= vision::largest_area) return;
    fail("{}: {} is not in [1, {}]", where(sizing, name), *pixels, vision::largest_area);
  };
  check_area("min_pixels", sizing.min_pixels);
  check_area("max_pixels", sizing.max_pixels);
  if (size.min_pixels > size.max_pixels) {
    if (sizing.min_pixels) {
      fail("{}: {} is more than max_pixels {}", where(sizing, "min_pixels"), size.min_pixels, size.max_pixels);
    }
    fail("{}: {} is less than min_pixels {}", where(sizing, "max_pixels"), size.max_pixels, size.min_pixels);
  }
  try {
    vision::check_size_options(size);
  } catch (const Error& error) {
    const std::string line = error.what();  // "max_long_side_pixel: …"
    throw Error(error.kind(), where(sizing, "max_long_side_pixel") + line.substr(line.find(':')));
  }
}

void apply_size(const Sizing& sizing, bool video, vision::SizeOptions& size) {
  if (sizing.rule) size.rule = *sizing.rule;
  if (sizing.max_long_side) size.rule = SizeRule::long_side;
  if (sizing.min_pixels || sizing.max_pixels) size.rule = SizeRule::area;
  if (sizing.min_pixels) size.min_pixels = *sizing.min_pixels;
  if (sizing.max_pixels) size.max_pixels = *sizing.max_pixels;
  if (sizing.max_long_side) {
    size.max_long_side = *sizing.max_long_side;
  } else if (sizing.detail == "low") {
    size.max_long_side = detail_low;
  } else if (sizing.detail == "high") {
    size.max_long_side = detail_high;
  } else if (sizing.detail == "default" && video) {
    size.max_long_side = detail_default_video;
  }
  check_bounds(sizing, size);
}

chat::Value parse_flag(const std::string& json, const std::string& flag) {
  try {
    Value value = chat::parse_json(json, flag);
    if (!value.is(Kind::dict)) fail("{}: expected a JSON object", flag);
    return value;
  } catch (const Error& error) {
    fail_usage("{}", error.what());
  }
}

Sizing read_known(const Value& object, const std::string& path) { return read_sizing(object, path, false); }

// mm_processor_kwargs, whose images_kwargs and videos_kwargs are for one kind alone.
void read_processor_kwargs(const Value& kwargs, const std::string& path, RequestSizing& out) {
  chat::Dict common;
  for (const auto& [key, value] : kwargs.as_dict().items) {
    if (key.bytes() != "images_kwargs" && key.bytes() != "videos_kwargs") common.set(key, value);
  }
  const Sizing both =
      read_known(Value::dict(std::make_shared<const chat::Dict>(std::move(common)), chat::Origin::message), path);
  out.images = merged(out.images, both);
  out.videos = merged(out.videos, both);
  const auto read = [&](const char* name, Sizing& to) {
    if (const Value* own = object_member(kwargs, path, name)) to = merged(to, read_known(*own, path + name + "."));
  };
  read("images_kwargs", out.images);
  read("videos_kwargs", out.videos);
}

void set_limit(std::string_view kind, std::int64_t count, const std::string& flag, MediaOptions& options) {
  if (count < 0) fail_usage("{}: {} {} is less than none", flag, kind, count);
  if (kind == "image") {
    options.most_images = count;
  } else if (kind == "video") {
    options.most_videos = count;
  } else if (kind != "audio" || count > 0) {
    fail_usage("{}: '{}' is unknown; known are image and video", flag, kind);
  }
}

}  // namespace

MediaOptions with_machine_defaults(MediaOptions options, unsigned cores) {
  // The least lets pictures of 12 million pixels through however little there is.
  constexpr std::int64_t least = std::int64_t{512} << 20;
  if (options.memory_bytes == 0) options.memory_bytes = std::max(available_memory_bytes() / 4, least);
  if (options.decode_memory_bytes == 0) options.decode_memory_bytes = std::max(available_memory_bytes() / 8, least);
  if (options.threads == 0) options.threads = std::max(static_cast<int>(cores), 1);
  return options;
}

Sizing merged(const Sizing& first, const Sizing& more) {
  Sizing out = first;
  // A bound or a word for one rule puts the other rule's bounds aside.
  const bool area = more.min_pixels || more.max_pixels || more.rule == SizeRule::area;
  const bool long_side = more.max_long_side || more.rule == SizeRule::long_side;
  if (area || long_side) out.rule.reset();
  if (area) out.max_long_side.reset();
  if (long_side) {
    out.min_pixels.reset();
    out.max_pixels.reset();
  }
  const auto take = [](auto& to, const auto& from) {
    if (from) to = from;
  };
  take(out.rule, more.rule);
  take(out.min_pixels, more.min_pixels);
  take(out.max_pixels, more.max_pixels);
  take(out.max_long_side, more.max_long_side);
  take(out.fps, more.fps);
  take(out.min_frames, more.min_frames);
  take(out.max_frames, more.max_frames);
  take(out.total_pixels, more.total_pixels);
  if (!more.detail.empty()) out.detail = more.detail;
  for (const auto& [name, place] : more.said) out.said[name] = place;
  return out;
}

Sizing read_sizing(const Value& object, const std::string& path, bool others) {
  for (const auto& [key, value] : object.as_dict().items) {
    if (others || std::ranges::find(known, key.bytes()) != known.end()) continue;
    fail("{}{}: not known here; known are {}", path, shortened(key.bytes()), fmt::join(known, ", "));
  }
  Sizing out = read_members(object, path);
  check_rule(out, path);
  return out;
}

RequestSizing read_request_sizing(const Value& body) {
  RequestSizing out;
  chat::Dict top;
  for (const char* name : {"max_long_side_pixel", "min_pixels", "max_pixels", "fps", "size_rule"}) {
    if (const Value* value = member(body, name)) top.set(Value::string(name), *value);
  }
  const Sizing both =
      read_known(Value::dict(std::make_shared<const chat::Dict>(std::move(top)), chat::Origin::message), "");
  out.images = out.videos = both;
  if (const Value* io = object_member(body, "", "media_io_kwargs")) {
    const std::string path = "media_io_kwargs.";
    for (const auto& [key, value] : io->as_dict().items) {
      if (key.bytes() == "video" || value.is(Kind::none)) continue;
      if (key.bytes() == "image" && value.is(Kind::dict) && value.as_dict().items.empty()) continue;
      fail("{}{}: not known here; video.fps and video.num_frames are", path, shortened(key.bytes()));
    }
    if (const Value* video = object_member(*io, path, "video")) {
      Sizing frames;
      for (const auto& [key, value] : video->as_dict().items) {
        if (key.bytes() == "fps" || key.bytes() == "num_frames") continue;
        fail("{}video.{}: not known here; fps and num_frames are", path, shortened(key.bytes()));
      }
      const Value* count = member(*video, "num_frames");
      const bool all = count != nullptr && count->is(Kind::integer) && count->as_int() == -1;
      if (!all) frames.max_frames = integer<int>(*video, path + "video.", "num_frames");
      frames.fps = number(*video, path + "video.", "fps");
      frames.said = {{"max_frames", path + "video.num_frames"}, {"fps", path + "video.fps"}};
      out.videos = merged(out.videos, frames);
    }
  }
  if (const Value* kwargs = object_member(body, "", "mm_processor_kwargs")) {
    read_processor_kwargs(*kwargs, "mm_processor_kwargs.", out);
  }
  return out;
}

void apply_processor_kwargs(const std::string& json, const std::string& flag, MediaOptions& options) try {
  RequestSizing sizing;
  read_processor_kwargs(parse_flag(json, flag), flag + ": ", sizing);
  apply(sizing.images, options.image);
  apply(sizing.videos, options.video);
} catch (const Error& error) {
  fail_usage("{}", error.what());
}

void apply_limits(const std::vector<std::string>& words, const std::string& flag, MediaOptions& options) {
  for (const std::string& given : words) {
    if (given.starts_with("{")) {
      const Value object = parse_flag(given, flag);
      for (const auto& [key, value] : object.as_dict().items) {
        const Value* count = value.is(Kind::dict) ? value.as_dict().find("count") : &value;
        if (value.is(Kind::dict) && count == nullptr) continue;  // vLLM's sizes for profiling alone
        if (!count->is(Kind::integer)) fail_usage("{}: {}: expected a number", flag, key.bytes());
        set_limit(key.bytes(), count->as_int(), flag, options);
      }
      continue;
    }
    for (std::size_t begin = 0; begin <= given.size();) {
      const std::size_t end = std::min(given.find(',', begin), given.size());
      const std::string_view one = std::string_view(given).substr(begin, end - begin);
      const std::size_t equals = one.find('=');
      std::int64_t count = 0;
      const char* last = one.data() + one.size();
      const bool fine = equals != std::string_view::npos &&
                        std::from_chars(one.data() + equals + 1, last, count).ptr == last && equals + 1 < one.size();
      if (!fine) fail_usage("{} {}: write image=4,video=1 or a JSON object", flag, given);
      set_limit(one.substr(0, equals), count, flag, options);
      begin = end + 1;
    }
  }
}

void apply(const Sizing& sizing, vision::ImageOptions& options) { apply_size(sizing, false, options.size); }

void apply(const Sizing& sizing, vision::VideoOptions& options) {
  apply_size(sizing, true, options.size);
  vision::SamplingOptions& sampling = options.sampling;
  if (sizing.fps) sampling.fps = *sizing.fps;
  if (sizing.max_frames) {
    sampling.max_frames = *sizing.max_frames;
    sampling.min_frames = std::min(sampling.min_frames, *sizing.max_frames);
  }
  if (sizing.min_frames) sampling.min_frames = *sizing.min_frames;
  if (sizing.total_pixels) options.total_pixels = *sizing.total_pixels;
  if (sizing.min_frames && sampling.min_frames > sampling.max_frames && sampling.max_frames >= 2) {
    fail("{}: {} is more than max_frames {}", where(sizing, "min_frames"), sampling.min_frames, sampling.max_frames);
  }
  try {
    vision::check_sampling_options(sampling);
  } catch (const Error& error) {
    const std::string line = error.what();  // "fps: …", "max_frames: …"
    const std::size_t colon = line.find(':');
    throw Error(error.kind(), where(sizing, line.substr(0, colon).c_str()) + line.substr(colon));
  }
}

}  // namespace m3::media
