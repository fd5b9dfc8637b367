// Templates and contexts with the output of Python's Jinja2, written by tools/chat/template_fuzz.py. Other files of the
// same form are checked when M3_TEMPLATE_CASES names one.
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>
#include <string>

#include "m3/error.h"
#include "src/base/mapped_file.h"
#include "src/chat/template/json.h"
#include "src/chat/template/template.h"

namespace m3::chat {
namespace {

void check_file(const std::string& path, int least) {
  std::istringstream lines(read_text_file(path, std::size_t{1} << 30));
  std::string line;
  int count = 0, different = 0;
  while (std::getline(lines, line) && different < 20) {
    ++count;
    const Value entry = parse_json(line, path);
    const Dict& dict = entry.as_dict();
    const std::string& source = dict.find("template")->bytes();
    const Value* expect = dict.find("expect");
    std::string got, error;
    try {
      got = Template(source).render(dict.find("context")->as_dict()).bytes();
    } catch (const Error& problem) {
      error = problem.what();
    }
    const bool same = expect == nullptr ? !error.empty() : error.empty() && got == expect->bytes();
    different += same ? 0 : 1;
    EXPECT_TRUE(same) << path << ":" << count << "\ntemplate: " << source
                      << "\nexpected: " << (expect == nullptr ? "an error" : expect->bytes())
                      << "\ngot: " << (error.empty() ? got : error);
  }
  EXPECT_GE(count, least);
}

TEST(TemplateCases, Stored) { check_file(M3_TEST_DATA "/chat/template_cases.jsonl", 400); }

TEST(TemplateCases, Given) {
  const char* path = std::getenv("M3_TEMPLATE_CASES");
  if (path == nullptr) GTEST_SKIP() << "M3_TEMPLATE_CASES names no file";
  check_file(path, 1);
}

}  // namespace
}  // namespace m3::chat
