#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <array>
#include <cstring>
#include <variant>

#include "domains.h"
#include "fastbudget/allocator.h"
#include "raise_status.h"

namespace py = pybind11;

namespace fastbudget::bindings {
namespace {

const std::int64_t* int64_vector(const py::array& array, const char* name) {
  if (array.ndim() != 1) {
    throw py::value_error(std::string(name) + " must be 1-D, got " + std::to_string(array.ndim()) + "-D");
  }
  // Checked rather than converted: a float array would lose digits without a word.
  if (!py::isinstance<py::array_t<std::int64_t>>(array)) throw py::type_error(std::string(name) + " must be int64");
  const auto misaligned = reinterpret_cast<std::uintptr_t>(array.data()) % sizeof(std::int64_t);
  if (!(array.flags() & py::array::c_style) || misaligned != 0) {
    throw py::value_error(std::string(name) + " must be contiguous and aligned");
  }
  return static_cast<const std::int64_t*>(array.data());
}

py::array_t<std::int64_t> to_array(const std::vector<std::int64_t>& values) {
  py::array_t<std::int64_t> array(static_cast<py::ssize_t>(values.size()));
  if (!values.empty()) std::memcpy(array.mutable_data(), values.data(), values.size() * sizeof(std::int64_t));
  return array;
}

py::dict to_dict(const AllocatorReplay& replay, bool timeline, bool addresses) {
  py::dict result;
  result["peak_allocated_bytes"] = replay.peak.allocated;
  result["peak_active_bytes"] = replay.peak.allocated;  // one stream: no block waits for another
  result["peak_reserved_bytes"] = replay.peak.reserved;
  result["peak_requested_bytes"] = replay.peak.requested;
  result["final_allocated_bytes"] = replay.final.allocated;
  result["final_reserved_bytes"] = replay.final.reserved;
  result["final_requested_bytes"] = replay.final.requested;
  result["reserved_at_peak_bytes"] = replay.reserved_at_peak_bytes;
  result["event_at_peak"] = replay.event_at_peak;
  result["event_at_reserved_peak"] = replay.event_at_reserved_peak;
  result["out_of_memory_event"] = replay.out_of_memory_event;
  result["num_segments"] = replay.num_segments;
  result["num_releases"] = replay.num_releases;
  result["num_splits"] = replay.num_splits;
  result["num_retries"] = replay.num_retries;
  if (timeline) {
    result["allocated"] = to_array(replay.allocated);
    result["reserved"] = to_array(replay.reserved);
  }
  if (addresses) result["address"] = to_array(replay.address);
  return result;
}

}  // namespace

void bind_allocator(py::module_& module) {
  const AllocatorOptions defaults;
  module.def(
      "replay_allocations",
      [](const py::array& storage, const py::array& delta_bytes, bool expandable_segments,
         std::int64_t max_split_size_bytes, std::int64_t capacity_bytes,
         const std::variant<std::int64_t, std::array<std::int64_t, kRoundupIntervals>>& roundup_power2_divisions,
         std::int64_t max_non_split_rounding_bytes, std::int64_t large_segment_bytes, bool timeline, bool addresses) {
        AllocatorOptions options;
        options.expandable_segments = expandable_segments;
        options.max_split_size_bytes = max_split_size_bytes;
        options.capacity_bytes = capacity_bytes;
        options.max_non_split_rounding_bytes = max_non_split_rounding_bytes;
        options.large_segment_bytes = large_segment_bytes;
        if (const auto* divisions = std::get_if<std::int64_t>(&roundup_power2_divisions)) {
          options.roundup_power2_divisions.fill(*divisions);
        } else {
          options.roundup_power2_divisions = std::get<1>(roundup_power2_divisions);
        }
        const AllocationEvents events{int64_vector(storage, "storage"), int64_vector(delta_bytes, "delta_bytes"),
                                      storage.shape(0)};
        if (storage.shape(0) != delta_bytes.shape(0)) {
          throw py::value_error("storage and delta_bytes must have the same length, got " +
                                std::to_string(storage.shape(0)) + " and " + std::to_string(delta_bytes.shape(0)));
        }
        AllocatorReplay replay;
        Status status;
        {
          py::gil_scoped_release release;
          status = replay_allocations(events, options, timeline, addresses, &replay);
        }
        raise_unless_ok(status);
        return to_dict(replay, timeline, addresses);
      },
      py::arg("storage"), py::arg("delta_bytes"), py::kw_only(), py::arg("expandable_segments") = false,
      py::arg("max_split_size_bytes") = defaults.max_split_size_bytes,
      py::arg("capacity_bytes") = defaults.capacity_bytes, py::arg("roundup_power2_divisions") = 0,
      py::arg("max_non_split_rounding_bytes") = defaults.max_non_split_rounding_bytes,
      py::arg("large_segment_bytes") = defaults.large_segment_bytes, py::arg("timeline") = false,
      py::arg("addresses") = false,
      "Replays allocations (delta > 0) and frees (delta < 0), int64 [E] each, through PyTorch's caching allocator.");
}

}  // namespace fastbudget::bindings
