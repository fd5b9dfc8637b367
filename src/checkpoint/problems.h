// What is wrong with a checkpoint, collected so that a person sees all of it at once.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace m3 {

struct Problem {
  std::string name;      // a tensor or a file
  std::string expected;  // "" where nothing of that name was expected
  std::string found;
};

class ProblemList {
 public:
  void add(std::string name, std::string expected, std::string found);
  void append(const ProblemList& other);
  bool empty() const { return problems_.empty(); }
  const std::vector<Problem>& all() const { return problems_; }

  // The first 20, one a line, then how many more there are; names are escaped where they hold control characters.
  std::string text() const;
  // Throws an input error that starts with `what` and lists the problems, unless there are none.
  void check(const std::string& what) const;

 private:
  std::vector<Problem> problems_;
};

// Control characters and broken UTF-8 of names that came from a file, made harmless; long ones are cut.
std::string printable(std::string_view name);

}  // namespace m3
