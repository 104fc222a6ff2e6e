#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>

#include "attention_plan.hpp"
#include "bindings.hpp"

namespace nb = nanobind;

namespace modulm {
namespace {

using Array = nb::ndarray<nb::ro, nb::device::cpu>;
using Changed = nb::ndarray<nb::device::cpu>;
template <class T>
using Host = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;

void require(bool holds, const char* message) {
  if (!holds) throw std::invalid_argument(message);
}

template <class Any>
bool is_float32(const Any& array) {
  return array.dtype() == nb::dtype<float>();
}

template <class Any>
bool is_contiguous(const Any& array) {
  if (array.size() == 0) return true;
  int64_t expected = 1;
  for (size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) != 1 && array.stride(i) != expected) return false;
    expected *= int64_t(array.shape(i));
  }
  return true;
}

// Tokens, heads and numbers of a head; the numbers lie together.
void check_heads(const Array& array, int64_t tokens, int64_t heads, int64_t size, const char* message) {
  require(is_float32(array) && array.ndim() == 3 && int64_t(array.shape(0)) == tokens &&
              int64_t(array.shape(1)) == heads && int64_t(array.shape(2)) == size,
          message);
  require(array.size() == 0 || size == 1 || array.stride(2) == 1, message);
}

const float* per_head(const std::optional<Array>& array, int64_t heads, const char* message) {
  if (!array.has_value()) return nullptr;
  require(is_float32(*array) && array->ndim() == 1 && int64_t(array->shape(0)) == heads && is_contiguous(*array),
          message);
  return static_cast<const float*>(array->data());
}

// `name` tells bytes apart that an array's type does not.
CacheType cache_type(const nb::dlpack::dtype& type, const std::string& name) {
  using Code = nb::dlpack::dtype_code;
  const bool is_float = type.code == uint8_t(Code::Float);
  if (is_float && type.bits == 32 && type.lanes == 1) return CacheType::float32;
  if (is_float && type.bits == 16 && type.lanes == 1) return CacheType::float16;
  if (type.code == uint8_t(Code::Bfloat) && type.bits == 16 && type.lanes == 1) return CacheType::bfloat16;
  if (type == nb::dtype<uint8_t>() && name == "fp8_e4m3") return CacheType::e4m3;
  if (type == nb::dtype<uint8_t>() && name == "fp8_e5m2") return CacheType::e5m2;
  require(type == nb::dtype<int8_t>(),
          "attention: the cache must be float32, bfloat16, float16, int8, or uint8 that cache_type calls fp8_e4m3 or "
          "fp8_e5m2");
  return CacheType::int8;
}

void set_cache(AttentionCall& call, const Changed& cache, int64_t block_size, const std::string& type_name) {
  call.cache_type = cache_type(cache.dtype(), type_name);
  require(cache.ndim() == 5 && cache.shape(1) == 2 && int64_t(cache.shape(2)) == call.num_kv_heads &&
              int64_t(cache.shape(3)) == block_size &&
              int64_t(cache.shape(4)) == call.head_size + scale_size(call.cache_type) && is_contiguous(cache),
          "attention: the cache must be a contiguous [num_blocks, 2, num_kv_heads, block_size, head_size], of int8 "
          "with head_size + 4");
  require(scales_fit(call.cache_type, cache.data(), call.head_size),
          "attention: in a cache of int8 head_size is a multiple of 4, and memory begins at one");
  call.cache = cache.data();
  call.block_size = block_size;
}

void set_rope(AttentionCall& call, const std::optional<Array>& cos, const std::optional<Array>& sin, int64_t tokens) {
  require(cos.has_value() == sin.has_value(), "attention: cos and sin come together");
  if (!cos.has_value()) return;
  for (const Array* table : {&*cos, &*sin}) {
    require(is_float32(*table) && table->ndim() == 2 && int64_t(table->shape(0)) == tokens && is_contiguous(*table) &&
                table->shape(1) == cos->shape(1) && table->shape(1) % 2 == 0 &&
                int64_t(table->shape(1)) <= call.head_size,
            "attention: cos and sin must be contiguous float32 [num_tokens, an even width up to head_size]");
  }
  call.cos = static_cast<const float*>(cos->data());
  call.sin = static_cast<const float*>(sin->data());
  call.rope_width = int64_t(cos->shape(1));
}

// Sets what is read and written, after checking that all of it fits together.
AttentionCall checked_call(const AttentionPlan& plan, const Array& query, const Array& key, const Array& value,
                           const Changed& cache, const Changed& out, const std::string& type_name) {
  require(query.ndim() == 3 && key.ndim() == 3, "attention: query and key must be [num_tokens, heads, head_size]");
  AttentionCall call{};
  const int64_t tokens = plan.num_tokens();
  call.num_heads = int64_t(query.shape(1));
  call.num_kv_heads = int64_t(key.shape(1));
  call.head_size = int64_t(query.shape(2));
  require(call.num_kv_heads > 0 && call.num_heads > 0 && call.num_heads % call.num_kv_heads == 0,
          "attention: the number of query heads must be a multiple of the number of key heads");
  require(call.head_size > 0 && call.head_size <= kLargestHead, "attention: head_size must be between 1 and 512");
  check_heads(query, tokens, call.num_heads, call.head_size,
              "attention: query must be float32 [num_tokens, num_heads, head_size] with adjacent numbers");
  for (const Array* array : {&key, &value}) {
    check_heads(*array, tokens, call.num_kv_heads, call.head_size,
                "attention: key and value must be float32 [num_tokens, num_kv_heads, head_size] with adjacent numbers");
  }
  require(is_float32(out) && out.ndim() == 3 && int64_t(out.shape(0)) == tokens &&
              int64_t(out.shape(1)) == call.num_heads && int64_t(out.shape(2)) == call.head_size && is_contiguous(out),
          "attention: out must be a contiguous float32 [num_tokens, num_heads, head_size]");
  call.query = static_cast<const float*>(query.data());
  call.query_token_stride = query.stride(0);
  call.query_head_stride = query.stride(1);
  call.key = static_cast<const float*>(key.data());
  call.key_token_stride = key.stride(0);
  call.key_head_stride = key.stride(1);
  call.value = static_cast<const float*>(value.data());
  call.value_token_stride = value.stride(0);
  call.value_head_stride = value.stride(1);
  call.out = static_cast<float*>(out.data());
  set_cache(call, cache, plan.block_size(), type_name);
  return call;
}

void forward(AttentionPlan& plan, const Array& query, const Array& key, const Array& value, const Changed& cache,
             const Changed& out, double scale, int64_t window, double soft_cap, const std::optional<Array>& sinks,
             const std::optional<Array>& alibi_slopes, const std::optional<Array>& cos, const std::optional<Array>& sin,
             bool exact, const std::string& isa_name, const std::string& type_name,
             const std::optional<Array>& key_scales, const std::optional<Array>& value_scales) {
  AttentionCall call = checked_call(plan, query, key, value, cache, out, type_name);
  require(window >= 0 && soft_cap >= 0.0 && std::isfinite(soft_cap) && std::isfinite(scale),
          "attention: window and soft_cap must not be negative (0 is none), and all numbers finite");
  call.scale = float(scale);
  call.window = int32_t(std::min<int64_t>(window, INT32_MAX));
  call.soft_cap = float(soft_cap);
  call.exact = exact;
  call.sinks = per_head(sinks, call.num_heads, "attention: sinks must be contiguous float32 [num_heads]");
  call.alibi_slopes =
      per_head(alibi_slopes, call.num_heads, "attention: alibi_slopes must be contiguous float32 [num_heads]");
  constexpr const char* kScales = "attention: scales must be contiguous float32 [num_kv_heads]";
  call.key_scales = per_head(key_scales, call.num_kv_heads, kScales);
  call.value_scales = per_head(value_scales, call.num_kv_heads, kScales);
  require(call.cache_type == CacheType::e4m3 || call.cache_type == CacheType::e5m2 || !(key_scales || value_scales),
          "attention: only a cache of 8-bit floats has scales of its own");
  set_rope(call, cos, sin, plan.num_tokens());
  const AttentionKernels& kernels = attention(isa_named(isa_name));
  nb::gil_scoped_release release;
  plan.run(call, int64_t(cache.shape(0)), kernels, pool());
}

void make_plan(AttentionPlan* self, const Host<int32_t>& query_start, const Host<int32_t>& seq_lens,
               const Host<int32_t>& block_table, const Host<int64_t>& slots, int64_t block_size) {
  require(query_start.ndim() == 1 && seq_lens.ndim() == 1 && block_table.ndim() == 2 && slots.ndim() == 1,
          "attention: query_start, seq_lens and slot_mapping have one dimension, block_table has two");
  const int64_t num_seqs = int64_t(seq_lens.shape(0));
  require(int64_t(query_start.shape(0)) == num_seqs + 1 && int64_t(block_table.shape(0)) == num_seqs,
          "attention: query_start must have one entry more than seq_lens, block_table as many rows");
  new (self) AttentionPlan(query_start.data(), num_seqs, seq_lens.data(), block_table.data(),
                           int64_t(block_table.shape(1)), slots.data(), int64_t(slots.shape(0)), block_size);
}

}  // namespace

void bind_attention(nb::module_& m) {
  // Or nanobind would copy an array of another type or layout, and what is written to a copy is lost.
  const auto exact = [](const char* name) { return nb::arg(name).noconvert(); };
  nb::class_<AttentionPlan>(m, "AttentionPlan", "What a step's attention consists of, for all layers of a KV group.")
      .def("__init__", &make_plan, exact("query_start"), exact("seq_lens"), exact("block_table"), exact("slot_mapping"),
           nb::arg("block_size"))
      .def("forward", &forward, exact("query"), exact("key"), exact("value"), exact("cache"), exact("out"),
           nb::arg("scale"), nb::arg("window") = 0, nb::arg("soft_cap") = 0.0, exact("sinks") = nb::none(),
           exact("alibi_slopes") = nb::none(), exact("cos") = nb::none(), exact("sin") = nb::none(),
           nb::arg("exact") = false, nb::arg("isa") = "", nb::arg("cache_type") = "",
           exact("key_scales") = nb::none(), exact("value_scales") = nb::none());
}

}  // namespace modulm
