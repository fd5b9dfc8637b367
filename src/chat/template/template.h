// A chat template, ready to render: the Jinja2 subset that chat templates use, run in this process.
//
// Equal to Python's Jinja2 as transformers configures it (immutable sandbox, trim_blocks, lstrip_blocks, loop
// controls, {% generation %}, its tojson), except that what only makes sense in HTML or needs other files is refused
// with the line and column of the construct: block, extends, include, import, autoescape, urlize, striptags and kin.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "src/chat/template/text.h"
#include "src/chat/template/value.h"

namespace m3::chat {

struct ParsedTemplate;

// A template is somebody else's program: these bound what it may use. Past one, rendering fails with one line.
struct RenderLimits {
  std::size_t output_bytes = std::size_t{64} << 20;
  std::size_t work = 40'000'000;  // nodes evaluated, plus one for each 8 bytes of text made; about 2 s
  int macro_depth = 200;          // of macros, and of loops that call themselves
};

class Template {
 public:
  // Parses; fails with "chat template line L column C: ..." on what it does not understand.
  explicit Template(std::string_view source);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  // Renders with the variables of `context`. Fails with the template's own words on raise_exception, else with line
  // and column. Const and re-entrant: one template may render on several threads at once.
  Text render(const Dict& context) const;

  const std::string& source() const { return source_; }

  RenderLimits limits;
  // strftime_now(format); empty: the local time.
  std::function<std::string(const std::string&)> strftime_now;

 private:
  std::string source_;
  std::unique_ptr<ParsedTemplate> parsed_;
};

}  // namespace m3::chat
