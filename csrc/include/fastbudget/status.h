// The result of a native call. C++17: also read by .cu files.
#pragma once

#include <string>
#include <utility>

namespace fastbudget {

enum class StatusCode { kOk = 0, kInvalidArgument, kOutOfRange, kUnavailable };

struct Status {
  StatusCode code = StatusCode::kOk;
  std::string message;

  bool ok() const { return code == StatusCode::kOk; }
  static Status Ok() { return {}; }
  static Status InvalidArgument(std::string text) { return {StatusCode::kInvalidArgument, std::move(text)}; }
  static Status OutOfRange(std::string text) { return {StatusCode::kOutOfRange, std::move(text)}; }
  static Status Unavailable(std::string text) { return {StatusCode::kUnavailable, std::move(text)}; }
};

}  // namespace fastbudget
