// What stored cases cannot show: errors with their place, bounds, and the origin of every byte.
#include "src/chat/template/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "m3/error.h"
#include "src/chat/template/json.h"

namespace m3::chat {
namespace {

Text render(const std::string& source, const std::string& context = "{}") {
  return Template(source).render(parse_json(context, "context").as_dict());
}

std::string output(const std::string& source, const std::string& context = "{}") {
  return render(source, context).bytes();
}

std::string error_of(const std::string& source, const std::string& context = "{}") {
  try {
    output(source, context);
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "no error";
}

// "t:" and "m:" before runs of template and message text.
std::string origins(const std::string& source, const std::string& context) {
  std::string out;
  render(source, context).for_each_run([&](std::string_view text, Origin origin) {
    out += origin == Origin::message ? "m:" : "t:";
    out += text;
    out += '|';
  });
  return out;
}

TEST(Template, ErrorsNameLineAndColumnAndConstruct) {
  EXPECT_EQ(error_of("a\n{% include 'x' %}"),
            "chat template line 2 column 4: the tag 'include' is not supported in chat templates");
  EXPECT_EQ(error_of("{{ x | pprint }}"),
            "chat template line 1 column 8: the filter 'pprint' is not supported in chat templates");
  EXPECT_EQ(error_of("{{ x | nope }}"), "chat template line 1 column 8: no filter named 'nope'");
  EXPECT_EQ(error_of("{{ x is nope }}"), "chat template line 1 column 6: no test named 'nope'");
  EXPECT_EQ(error_of("\n\n  {{ missing.x }}"), "chat template line 3 column 13: 'missing' is undefined");
  EXPECT_EQ(error_of("{{ 'a'.encode() }}"),
            "chat template line 1 column 14: the string method 'encode' is not supported");
  EXPECT_EQ(error_of("{{ 1 / 0 }}"), "chat template line 1 column 6: division by zero");
  EXPECT_EQ(error_of("{{ raise_exception('no ' ~ 'way') }}"), "chat template line 1 column 19: no way");
  EXPECT_EQ(error_of("{% for x in y %}"),
            "chat template line 1 column 17: the template ends before the endfor or else that closes this block");
  EXPECT_EQ(error_of("{{ 'a }}"), "chat template line 1 column 4: a string is not closed");
  EXPECT_EQ(error_of("{{ a b }}"), "chat template line 1 column 6: expected }}, found 'b'");
  EXPECT_EQ(error_of("{% break %}"), "chat template line 1 column 4: 'break' outside of a loop");
}

TEST(Template, InvalidTextIsRefused) { EXPECT_THAT(error_of("\xff"), testing::HasSubstr("UTF-8")); }

TEST(Template, RecursionIsBounded) {
  EXPECT_THAT(error_of("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}"), testing::HasSubstr("deep"));
  EXPECT_THAT(error_of("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}"),
              testing::HasSubstr("nested"));
  std::string chain = "{{ 1";
  for (int i = 0; i < 5000; ++i) chain += " + 1";
  EXPECT_THAT(error_of(chain + " }}"), testing::HasSubstr("nested"));
  std::string nested;
  for (int i = 0; i < 3000; ++i) nested += "{% if true %}";
  EXPECT_THAT(error_of(nested), testing::HasSubstr("nested"));
  EXPECT_THAT(error_of("{{ " + std::string(3000, '-') + "1 }}"), testing::HasSubstr("nested"));
  EXPECT_THAT(error_of("{% for x in [[]] recursive %}{{ loop([x]) }}{% endfor %}"), testing::HasSubstr("deep"));
}

TEST(Template, WorkAndSizeAreBounded) {
  EXPECT_THAT(error_of("{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}"),
              testing::HasSubstr("more work"));
  EXPECT_THAT(error_of("{{ 'x' * 1000000000 }}"), testing::HasSubstr("bytes"));
  EXPECT_THAT(error_of("{{ 'x'.center(1000000000) }}"), testing::HasSubstr("bytes"));
  EXPECT_THAT(error_of("{{ range(100001) }}"), testing::HasSubstr("range"));
  EXPECT_THAT(
      error_of(
          "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"),
      testing::HasSubstr("bytes"));
  EXPECT_THAT(error_of("{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}"),
              testing::HasSubstr("nested"));
  EXPECT_THAT(error_of("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}"), testing::HasSubstr("contains itself"));
  EXPECT_THAT(error_of("{{ '%99999999d' % 1 }}"), testing::HasSubstr("too large"));
  EXPECT_THAT(error_of("{{ 9223372036854775807 + 1 }}"), testing::HasSubstr("64 bits"));
}

TEST(Template, OutputSizeIsBounded) {
  Template small("{% for i in range(100) %}0123456789{% endfor %}");
  small.limits.output_bytes = 500;
  EXPECT_THROW(small.render({}), Error);
}

TEST(Template, StringsRememberWhereTheyCameFrom) {
  const std::string context =
      R"({"s": "abc", "t": " x,y ", "n": 5, "f": 1.5, "b": true, "l": ["p", "q"], "d": {"k": "v"}})";
  EXPECT_EQ(origins("<{{ s }}>", context), "t:<|m:abc|t:>|");
  EXPECT_EQ(origins("{{ '<' ~ s ~ '>' }}", context), "t:<|m:abc|t:>|");
  EXPECT_EQ(origins("{{ '<' + s }}", context), "t:<|m:abc|");
  EXPECT_EQ(origins("{{ ('<' ~ s ~ '>')[1:5] }}", context), "m:abc|t:>|");
  EXPECT_EQ(origins("{{ ('<' ~ s ~ '>')[::-1] }}", context), "t:>|m:cba|t:<|");
  EXPECT_EQ(origins("{{ ('a' ~ s) | upper }}", context), "t:A|m:ABC|");
  EXPECT_EQ(origins("{{ ('-' ~ t ~ '-').strip('-').strip() }}", context), "m:x,y|");
  EXPECT_EQ(origins("{{ t.split(',')[1].strip() ~ ';' }}", context), "m:y|t:;|");
  EXPECT_EQ(origins("{{ s.replace('b', '<b>') }}", context), "m:a|t:<b>|m:c|");
  EXPECT_EQ(origins("{{ '<b>'.replace('b', s) }}", context), "t:<|m:abc|t:>|");
  EXPECT_EQ(origins("{{ l | join(', ') }}", context), "m:p|t:, |m:q|");
  EXPECT_EQ(origins("{{ d | tojson }}", context), "m:{\"k\": \"v\"}|");
  EXPECT_EQ(origins("{{ {'k': s} | tojson }}", context), "t:{\"k\": |m:\"abc\"|t:}|");
  EXPECT_EQ(origins("{{ '[%s]' % s }}", context), "t:[|m:abc|t:]|");
  EXPECT_EQ(origins("{{ '[{}]'.format(s) }}", context), "t:[|m:abc|t:]|");
  EXPECT_EQ(origins("{{ n }}{{ f }}{{ b }}", context), "m:51.5True|");
  EXPECT_EQ(origins("{{ 5 }}{{ 1.5 }}{{ true }}", context), "t:51.5True|");
  EXPECT_EQ(origins("{{ d }}", context), "m:{'k': 'v'}|");
  EXPECT_EQ(origins("{% macro m(x) %}({{ x }}){% endmacro %}{{ m(s) }}", context), "t:(|m:abc|t:)|");
  EXPECT_EQ(origins("{% set x %}<{{ s }}{% endset %}{{ x }}", context), "t:<|m:abc|");
  EXPECT_EQ(origins("{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}", context), "m:k|t:=|m:v|");
  EXPECT_EQ(origins("{{ s | indent(2, true) }}", context), "t:  |m:abc|");
  EXPECT_EQ(origins("{{ s | default('x') }}{{ q | default('x') }}", context), "m:abc|t:x|");
  EXPECT_EQ(origins("{% filter title %}a{{ s }}{% endfilter %}", context), "t:A|m:abc|");
  EXPECT_EQ(origins("{{ s if n > 3 else 'no' }}{{ loop | default('-') }}", context), "m:abc|t:-|");
}

TEST(Template, LargeIntegersKeepTheirDigits) {
  EXPECT_EQ(output("{{ x }}|{{ x | tojson }}", R"({"x": 123456789012345678901234567890})"),
            "123456789012345678901234567890|123456789012345678901234567890");
}

TEST(Template, TheClockCanBeReplaced) {
  Template t("{{ strftime_now('%Y') }}");
  t.strftime_now = [](const std::string& format) { return "<" + format + ">"; };
  EXPECT_EQ(t.render({}).bytes(), "<%Y>");
}

}  // namespace
}  // namespace m3::chat
