// What Python hands to packed weights: addresses and numbers that say what lies there. An address is an integer, as
// asking a tensor for its `__dlpack__` costs more than a small product. Everything that can be checked is.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "float_types.hpp"

namespace modulm {

inline constexpr int64_t kMostNumbers = int64_t(1) << 40;  // per array: products of shapes stay far from overflow

template <class T>
T* pointer(uintptr_t address, int64_t bytes, const char* what) {
  if (address == 0) throw std::invalid_argument(std::string(what) + " is a null pointer");
  if (address % uintptr_t(bytes) != 0) {
    throw std::invalid_argument(std::string(what) + " is not aligned to its " + std::to_string(bytes) + " bytes");
  }
  return reinterpret_cast<T*>(address);
}

inline Float float_type(int number, const char* what) {
  if (number < 0 || number > 2) throw std::invalid_argument(std::string(what) + " has no known type");
  return Float(number);
}

inline void require(bool holds, const char* otherwise) {
  if (!holds) throw std::invalid_argument(otherwise);
}

inline void require_shape(int64_t rows, int64_t inputs) {
  require(rows > 0 && inputs > 0, "A weight needs at least one row and one input");
  require(rows <= kMostNumbers / inputs, "A weight has more than 2^40 numbers");
}

inline void require_tokens(int64_t tokens, int64_t stride, int64_t inputs) {
  require(tokens > 0, "There must be at least one token");
  require(tokens <= kMostNumbers / inputs, "There are more than 2^40 activations");
  // One row may have any stride: a view of a single token says nothing by it.
  require(tokens == 1 || (stride >= inputs && stride <= kMostNumbers / tokens), "x has rows that overlap");
}

inline void require_indices(const int64_t* index, int64_t count, int64_t rows) {
  for (int64_t i = 0; i < count; ++i) {
    if (index[i] < 0 || index[i] >= rows) {
      throw std::out_of_range("Row " + std::to_string(index[i]) + " is asked for; there are " + std::to_string(rows));
    }
  }
}

// Number `at` of a row of results.
inline void put(float value, void* to, Float type, int64_t at) {
  switch (type) {
    case Float::f32: static_cast<float*>(to)[at] = value; break;
    case Float::f16: static_cast<uint16_t*>(to)[at] = to_f16(value); break;
    case Float::bf16: static_cast<uint16_t*>(to)[at] = to_bf16(value); break;
  }
}

}  // namespace modulm
