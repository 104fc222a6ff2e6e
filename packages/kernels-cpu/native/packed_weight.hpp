// What all packed weights can be asked by native code: a product and single rows, in float32. Callers are trusted; what
// comes from Python goes through the checks of each class's binding.
#pragma once

#include <cstdint>

#include "linear_dense.hpp"
#include "pool.hpp"

namespace modulm {

// Memory that a product with few tokens reads from one end to the other, each thread of the pool its share of the blocks,
// `grain` at a time.
struct Stream {
  const uint8_t* data = nullptr;
  int64_t blocks = 0, block_bytes = 0, grain = 1;

  const uint8_t* begin_of(int number, const Pool& pool) const {
    return data + pool.share_begin(number, blocks, grain) * block_bytes;
  }
};

class PackedWeight {
 public:
  virtual ~PackedWeight() = default;

  virtual Stream stream() const { return {}; }

  // What is likely to be read after this weight. It is asked for ahead of time and need not be there any more.
  virtual void set_next(const Stream& next) { next_ = next; }

  virtual int64_t out_features() const = 0;
  virtual int64_t in_features() const = 0;

  // out[t * out_stride + r] = sum over i of x[t * stride + i] * W[r, i]. `exact` is for weights that have two ways of
  // multiplying and were not packed for one of them.
  virtual void multiply(const float* x, int64_t stride, int64_t tokens, float* out, int64_t out_stride,
                        bool exact) const = 0;

  // How activations lie for `multiply_panels`, or null where so many tokens are not multiplied panel by panel. Weights with
  // one packer can share the activations.
  virtual const TokenPacker* packer(int64_t /*tokens*/, bool /*exact*/) const { return nullptr; }

  // Panels [begin, end) of 32 rows for tokens [first, last) of packed activations.
  virtual void multiply_panels(const Activations& /*x*/, const Output& /*out*/, int64_t /*begin*/, int64_t /*end*/,
                               int64_t /*first*/, int64_t /*last*/, bool /*exact*/) const {}

  // Whether that adds results to `Output::added`, of weights with whole panels of rows.
  virtual bool adds(int64_t /*tokens*/, bool /*exact*/) const { return false; }

  // How a block of 16 rows becomes tiles, where `packer` takes tiles of so many tokens; or null.
  virtual WidenRows widener(int64_t /*block*/, bool /*exact*/) const { return nullptr; }

  // out[i * out_stride + j] = W[index[i], j]; every index is below out_features().
  virtual void gather(const int64_t* index, int64_t count, float* out, int64_t out_stride) const = 0;

 protected:
  Stream next_;
};

}  // namespace modulm
