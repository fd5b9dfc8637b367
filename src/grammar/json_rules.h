// Grammar rules for JSON texts that a schema allows.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <string_view>

#include "src/grammar/ebnf.h"
#include "src/grammar/schema.h"

namespace m3::grammar {

class JsonRules {
 public:
  // Rule names begin with `prefix`. `brackets`: whether strings may hold a plain ']'; without, it is only spelled as an
  // escape, which keeps the text free of tool-call markers. All named must outlive this.
  JsonRules(const Schema& schema, Rules& rules, std::string prefix, bool brackets = true);

  // The name of the rule for a value that satisfies `parts`; what it needs is defined by the next finish().
  std::string value(const Parts& parts);
  // An expression for one shape of a value.
  std::string shape(const Shape& shape);
  // Defines all rules that were asked for.
  void finish();

 private:
  std::string helper(std::string_view name);
  std::string fresh();
  std::string strings(const Shape& shape);
  std::string numbers(const Shape& shape);
  std::string array(const Shape& shape);
  std::string object(const Shape& shape);
  std::string other_names(const Shape& shape);

  const Schema& schema_;
  Rules& rules_;
  std::string prefix_;
  bool brackets_;
  std::size_t count_ = 0;
  std::map<std::string, std::string> named_;           // schema key -> rule
  std::deque<std::pair<std::string, Parts>> waiting_;  // rules to define
  std::map<std::string, bool, std::less<>> helpers_;   // asked for; defined?
};

// The grammar (with its rule `root`) of JSON texts under a JSON Schema given as text. Errors (input): no JSON, or what
// Schema refuses; the line begins with `path`.
std::string json_schema_grammar(std::string_view schema, const std::string& path,
                                Strictness strictness = Strictness::strict);
// Of any JSON object.
std::string json_object_grammar();
// Of exactly one of these texts.
std::string choice_grammar(const std::vector<std::string>& choices);

// A JSON Schema from its text. Errors as above; at most 1 MiB and 128 levels deep.
Json parse_schema(std::string_view text, const std::string& path);

}  // namespace m3::grammar
