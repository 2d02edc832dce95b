#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "fastbudget/threads.h"
#include "fastbudget/tokens.h"

namespace fastbudget {
namespace {

constexpr std::int64_t kCheckGrain = 1 << 20;

template <class Use>
auto with_type(TokenType type, Use use) {
  switch (type) {
    case TokenType::kInt8: return use(std::int8_t{});
    case TokenType::kUint8: return use(std::uint8_t{});
    case TokenType::kInt16: return use(std::int16_t{});
    case TokenType::kUint16: return use(std::uint16_t{});
    case TokenType::kInt32: return use(std::int32_t{});
    case TokenType::kUint32: return use(std::uint32_t{});
    case TokenType::kInt64: return use(std::int64_t{});
    case TokenType::kUint64: return use(std::uint64_t{});
  }
  __builtin_unreachable();
}

std::int64_t item_size(TokenType type) {
  return with_type(type, [](auto token) { return static_cast<std::int64_t>(sizeof token); });
}

// Negative tokens become large, so that one comparison finds both kinds of bad ones.
template <class T>
bool all_below(const T* tokens, std::int64_t count, std::uint64_t limit) {
  using Unsigned = std::make_unsigned_t<T>;
  if (limit > static_cast<std::uint64_t>(std::numeric_limits<T>::max())) {
    if constexpr (std::is_unsigned_v<T>) return true;
    limit = std::uint64_t{1} << (8 * sizeof(T) - 1);
  }
  Unsigned largest = 0;
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, static_cast<Unsigned>(tokens[i]));
  return largest < limit;
}

}  // namespace

TokenFile::TokenFile(std::string path, TokenType type, std::int64_t offset, std::int64_t vocab_size, int descriptor)
    : path_(std::move(path)), type_(type), offset_(offset), vocab_size_(vocab_size), descriptor_(descriptor) {}

TokenFile::~TokenFile() { close(descriptor_); }

Status TokenFile::open(const std::string& path, TokenType type, std::int64_t offset, std::int64_t vocab_size,
                       std::shared_ptr<TokenFile>* file) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return Status::Unavailable(path + " can't be opened: " + std::strerror(errno));
  file->reset(new TokenFile(path, type, offset, vocab_size, descriptor));
  return Status::Ok();
}

Status TokenFile::read(std::int64_t first, std::int64_t count, char* out) const {
  std::int64_t done = 0;
  const std::int64_t size = item_size(type_), bytes = count * size, start = offset_ + first * size;
  while (done < bytes) {
    const ssize_t got = pread(descriptor_, out + done, static_cast<std::size_t>(bytes - done), start + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Status::Unavailable(path_ + " can't be read: " + std::strerror(errno));
    if (got == 0) {
      struct stat now{};
      fstat(descriptor_, &now);
      return Status::Unavailable(path_ + " has only " + std::to_string(now.st_size) + " bytes left and was read at " +
                                 std::to_string(start + done) + ": it was truncated after it was opened");
    }
    done += got;
  }
  return Status::Ok();
}

Status TokenFile::check_range(const char* tokens, std::int64_t first, std::int64_t count) const {
  if (vocab_size_ <= 0) return Status::Ok();
  const auto limit = static_cast<std::uint64_t>(vocab_size_);
  return with_type(type_, [&](auto type) {
    using T = decltype(type);
    const T* values = reinterpret_cast<const T*>(tokens);
    if (all_below(values, count, limit)) return Status::Ok();
    std::int64_t i = 0;
    while (static_cast<std::uint64_t>(static_cast<std::int64_t>(values[i])) < limit) ++i;
    return Status::OutOfRange("token " + std::to_string(first + i) + " of " + path_ + " is " +
                              std::to_string(values[i]) + ", which is not in [0, " + std::to_string(vocab_size_) + ")");
  });
}

Status TokenFile::read_window(std::int64_t first, std::int64_t length, std::int64_t* inputs,
                              std::int64_t* targets) const {
  thread_local std::vector<std::int64_t> scratch;
  scratch.resize(static_cast<std::size_t>(length + 1));
  char* raw = reinterpret_cast<char*>(scratch.data());
  if (Status status = read(first, length + 1, raw); !status.ok()) return status;
  if (Status status = check_range(raw, first, length + 1); !status.ok()) return status;
  with_type(type_, [&](auto type) {
    const auto* tokens = reinterpret_cast<const decltype(type)*>(raw);
    for (std::int64_t i = 0; i < length; ++i) inputs[i] = static_cast<std::int64_t>(tokens[i]);
    for (std::int64_t i = 0; i < length; ++i) targets[i] = static_cast<std::int64_t>(tokens[i + 1]);
  });
  return Status::Ok();
}

Status TokenFile::check(std::int64_t count, int threads) const {
  std::mutex mutex;
  Status first_error;
  std::int64_t first_bad = count;
  parallel_for(count, kCheckGrain, threads, [&](int, std::int64_t begin, std::int64_t end) {
    std::vector<std::int64_t> scratch(static_cast<std::size_t>((end - begin) * item_size(type_) + 7) / 8);
    char* raw = reinterpret_cast<char*>(scratch.data());
    Status status = read(begin, end - begin, raw);
    if (status.ok()) status = check_range(raw, begin, end - begin);
    if (status.ok()) return;
    std::lock_guard<std::mutex> hold(mutex);
    if (begin < first_bad) {
      first_bad = begin;
      first_error = std::move(status);
    }
  });
  return first_error;
}

}  // namespace fastbudget
