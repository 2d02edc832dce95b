#include <pybind11/numpy.h>

#include <map>
#include <mutex>

#include "domains.h"
#include "fastbudget/tokens.h"
#include "raise_status.h"

namespace py = pybind11;

namespace fastbudget::bindings {
namespace {

constexpr std::uint64_t kLargestSize = std::uint64_t{1} << 62;

TokenType type_of(const std::string& name) {
  static const std::map<std::string, TokenType> types = {{"int8", TokenType::kInt8},   {"uint8", TokenType::kUint8},
                                                         {"int16", TokenType::kInt16}, {"uint16", TokenType::kUint16},
                                                         {"int32", TokenType::kInt32}, {"uint32", TokenType::kUint32},
                                                         {"int64", TokenType::kInt64}, {"uint64", TokenType::kUint64}};
  const auto found = types.find(name);
  if (found == types.end()) throw py::type_error("tokens of type " + name + " can't be read");
  return found->second;
}

// Views [rows, columns] of a batch; the batch lives as long as one of them.
py::array_t<std::int64_t> view_of(std::int64_t* data, std::int64_t rows, std::int64_t columns,
                                  const std::shared_ptr<TokenBatch>& batch) {
  auto* owner = new std::shared_ptr<TokenBatch>(batch);
  py::capsule base(owner, [](void* held) { delete static_cast<std::shared_ptr<TokenBatch>*>(held); });
  return py::array_t<std::int64_t>({rows, columns}, data, base);
}

class BatchIterator {
 public:
  BatchIterator(std::shared_ptr<const TokenFile> file, const TokenBatchPlan& plan, std::int64_t start, int prefetch)
      : plan_(plan), reader_(std::make_unique<TokenBatchReader>(std::move(file), plan, start, prefetch)) {}

  ~BatchIterator() {
    py::gil_scoped_release release;  // the reading thread may be inside a slow read
    reader_.reset();
  }

  py::tuple next() {
    const std::unique_lock<std::mutex> hold(mutex_, std::try_to_lock);
    if (!hold) throw py::value_error("another thread is taking a batch from this iterator");
    std::shared_ptr<TokenBatch> batch;
    Status status;
    {
      py::gil_scoped_release release;
      status = reader_->next(&batch);
    }
    raise_unless_ok(status);
    return py::make_tuple(view_of(batch->inputs, plan_.batch_size, plan_.seq_len, batch),
                          view_of(batch->targets, plan_.batch_size, plan_.seq_len, batch));
  }

 private:
  const TokenBatchPlan plan_;
  std::unique_ptr<TokenBatchReader> reader_;
  std::mutex mutex_;
};

}  // namespace

void bind_tokens(py::module_& module) {
  module.def(
      "permute_range",
      [](std::uint64_t size, std::uint64_t seed, std::uint64_t epoch, std::int64_t begin, std::int64_t end,
         int threads) {
        if (size < 1 || size > kLargestSize) throw py::value_error("size must be in [1, 2^62]");
        if (begin < 0 || end < begin || static_cast<std::uint64_t>(end) > size) {
          throw py::value_error("begin and end must be in [0, size], in this order");
        }
        py::array_t<std::int64_t> out(end - begin);
        std::int64_t* data = out.mutable_data();
        {
          py::gil_scoped_release release;
          permute_range(IndexPermutation(size, seed, epoch), begin, end - begin, threads, data);
        }
        return out;
      },
      py::arg("size"), py::arg("seed"), py::arg("epoch"), py::arg("begin"), py::arg("end"), py::arg("threads") = 0,
      "Elements [begin, end) of the shuffled order of range(size); int64.");

  py::class_<TokenFile, std::shared_ptr<TokenFile>>(module, "TokenFile", py::module_local())
      .def(py::init([](const std::string& path, const std::string& type, std::int64_t offset, std::int64_t vocab_size) {
             std::shared_ptr<TokenFile> file;
             raise_unless_ok(TokenFile::open(path, type_of(type), offset, vocab_size, &file));
             return file;
           }),
           py::arg("path"), py::arg("type"), py::arg("offset") = 0, py::arg("vocab_size") = 0)
      .def(
          "read_window",
          [](const TokenFile& file, std::int64_t first, std::int64_t length) {
            py::array_t<std::int64_t> inputs(length), targets(length);
            std::int64_t *input = inputs.mutable_data(), *target = targets.mutable_data();
            Status status;
            {
              py::gil_scoped_release release;
              status = file.read_window(first, length, input, target);
            }
            raise_unless_ok(status);
            return py::make_tuple(inputs, targets);
          },
          py::arg("first"), py::arg("length"), "Tokens [first, first + length) and the same one later; int64 each.")
      .def(
          "check",
          [](const TokenFile& file, std::int64_t count, int threads) {
            Status status;
            {
              py::gil_scoped_release release;
              status = file.check(count, threads);
            }
            raise_unless_ok(status);
          },
          py::arg("count"), py::arg("threads") = 0, "Reads count tokens and checks them against the vocabulary.");

  py::class_<BatchIterator>(module, "TokenBatches", py::module_local())
      .def(py::init([](std::shared_ptr<TokenFile> file, std::int64_t seq_len, std::int64_t windows,
                       std::int64_t batch_size, std::int64_t start, std::int64_t rank, std::int64_t world_size,
                       std::uint64_t seed, int prefetch) {
             if (seq_len < 1 || batch_size < 1 || world_size < 1 || rank < 0 || rank >= world_size || start < 0 ||
                 prefetch < 0 || windows / world_size < batch_size) {
               throw py::value_error("not a plan for batches");
             }
             return std::make_unique<BatchIterator>(
                 std::move(file), TokenBatchPlan{seq_len, windows, batch_size, rank, world_size, seed}, start,
                 prefetch);
           }),
           py::kw_only(), py::arg("file"), py::arg("seq_len"), py::arg("windows"), py::arg("batch_size"),
           py::arg("start"), py::arg("rank"), py::arg("world_size"), py::arg("seed"), py::arg("prefetch"))
      .def("next", &BatchIterator::next, "The next (inputs, targets); int64 [batch_size, seq_len] each.");
}

}  // namespace fastbudget::bindings
