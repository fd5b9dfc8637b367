// Numbers of a range, as an expression over the characters that spell them in JSON.
#pragma once

#include <optional>
#include <string>

namespace m3::grammar {

// A decimal: no exponent, no sign.
struct Decimal {
  bool negative = false;
  std::string whole;     // without leading zeros; "0" if there is nothing before the point
  std::string fraction;  // without trailing zeros

  // Shortest spelling of a finite double, written out.
  static Decimal from(double value);
};
// Negative, zero or positive, as left is less than, equal to or greater than right.
int compare(const Decimal& left, const Decimal& right);

struct Bound {
  Decimal value;
  bool exclusive = false;
};

// Expressions of the grammar notation; nothing where no number lies in the range. Without an exponent where there is a
// bound; with at most 18 digits before the point and a small exponent where there is none, so that every reader can
// hold the number and no model goes on writing digits.
std::optional<std::string> integer_expression(const std::optional<Bound>& low, const std::optional<Bound>& high);
std::optional<std::string> number_expression(const std::optional<Bound>& low, const std::optional<Bound>& high);
// Numbers with at most `digits` digits behind the point.
std::string fixed_point_expression(int digits);

}  // namespace m3::grammar
