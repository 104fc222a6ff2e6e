// The operations of a section; `interfaces/program.py` of modulm-core defines what each computes. They trust their
// arguments: `bindings_program.cpp` has checked places, sizes and weights.
#pragma once

#include <vector>

#include "attention.hpp"
#include "elementwise.hpp"
#include "packed_weight.hpp"
#include "program.hpp"

namespace modulm {

struct Embedding : Operation {
  const PackedWeight* weight;
  Place out;
  void run(Frame& frame) const override;
};

// A matrix, or several side by side whose outputs follow one another.
struct Matrix {
  struct Part {
    const PackedWeight* weight;
    bool exact;
  };
  std::vector<Part> parts;
  std::vector<float> bias;  // empty for none
  int64_t out_features = 0;

  int64_t in_features() const { return parts.front().weight->in_features(); }

  void multiply(const Frame& frame, const float* x, int64_t stride, int64_t rows, float* out, int64_t out_stride) const;

  // How activations may be packed for so many rows, for the next function; or null.
  const TokenPacker* packer(int64_t rows) const;
  void multiply(const Frame& frame, const TokenPacker& by, const Activations& x, int64_t rows, float* out,
                int64_t out_stride, const float* added = nullptr, int64_t added_stride = 0) const;
  bool adds(int64_t rows) const;  // whether it adds so many rows to what is `added`

  // The same where gates and ups can be had panel by panel.
  const TokenPacker* gate_packer(int64_t rows) const;

  // act(gate) * up instead, if that can be had panel by panel; else false, and nothing is done. The whole result, twice as
  // wide as what is asked for, then never exists. With a packer it is packed for the next product.
  bool multiply_gated(const Frame& frame, const float* x, int64_t stride, int64_t rows, Activation function, float* out,
                      int64_t out_stride) const;
  void multiply_gated(const Frame& frame, const TokenPacker& common, const Activations& x, int64_t rows, Activation function,
                      const TokenPacker& by, const Activations& out) const;

 private:
  Activations packed(const Frame& frame, const TokenPacker& by, const float* x, int64_t stride, int64_t rows) const;
  void add_bias(const Frame& frame, int64_t rows, float* out, int64_t out_stride) const;
  template <class Body>
  void over_parts(int64_t begin, int64_t end, const Body& body) const;
  WidenRows widener(int64_t block) const;
  template <class Put, class Directly>
  void over_gates(const Frame& frame, const TokenPacker& common, const Activations& x, int64_t rows, const Put& put,
                  const Directly& directly) const;
};

struct Add : RowOperation {
  int64_t size;
  Place a, b, out;
  int64_t row_work() const override { return size; }
  void run_rows(const Frame& frame, int64_t begin, int64_t end) const override;
};

// A product that ends with the sum that follows it, where its last matrix can.
struct SummedProduct : Product {
  Place x, out;
  const Add* sum = nullptr;  // the next operation, if it alone reads `out`

 protected:
  bool multiply(Frame& frame, const Matrix& last, const TokenPacker& by, const Activations& packed) const;
};

struct Linear : SummedProduct {
  Matrix matrix;
  void run_unpacked(Frame& frame) const override;
  Packing packing(Frame& frame) const override;
  bool run_packed(Frame& frame, const Packing& packed) const override;
};

// act(gate) * up of a matrix whose first half gives gates; the matrix's own result exists for some rows at a time at most.
struct GatedLinear : Operation {
  Matrix matrix;
  Activation function;
  Place x, out;
  void run(Frame& frame) const override;
};

// The same, and a product with what that gives, which goes from one to the other packed where both are by panels.
struct GatedMLP : SummedProduct {
  Matrix matrix, down;
  Activation function;
  void run_unpacked(Frame& frame) const override;
  Packing packing(Frame& frame) const override;
  bool run_packed(Frame& frame, const Packing& packed) const override;
};

struct GatedActivation : Operation {
  Activation function;
  int64_t size;  // of a row of the result
  Place x, out;
  void run(Frame& frame) const override;
};

// Each row is `count` vectors of `weight`'s size, each with a norm of its own.
struct RmsNorm : RowOperation {
  std::vector<float> weight;
  int64_t count;
  float eps, offset;
  Place x, out;
  int64_t row_work() const override { return 2 * count * int64_t(weight.size()); }
  void run_rows(const Frame& frame, int64_t begin, int64_t end) const override;
};

struct Scale : RowOperation {
  int64_t size;
  float factor;
  Place x, out;
  int64_t row_work() const override { return size; }
  void run_rows(const Frame& frame, int64_t begin, int64_t end) const override;
};

// cos and sin of position * frequency, times `scaling`; the halves of a row are alike, as attention wants them.
struct RotaryTables : Operation {
  std::vector<float> inverse, long_inverse;
  float scaling;
  int64_t long_from;
  bool is_dynamic;  // then frequencies follow from the length: see `DynamicNTK` in interfaces/program.py
  double theta, factor;
  int64_t stated;
  Place cos, sin;
  void run(Frame& frame) const override;

 private:
  void fill(Frame& frame, int64_t begin, int64_t end) const;
};

// `call` is complete but for what changes from step to step.
struct Attention : Operation {
  AttentionCall call;
  std::vector<float> sinks;                     // of each head, or empty
  std::vector<float> key_scales, value_scales;  // the same, what the call points to
  int64_t num_blocks;
  size_t group;  // of the KV cache
  Place query, key, value, out;
  bool is_rotated;  // by `cos` and `sin`
  Place cos, sin;
  void run(Frame& frame) const override;
};

struct SparseMoE : Operation {
  Matrix router;
  std::vector<Matrix> gate_up, down;
  int64_t hidden_size, intermediate_size, top_k;
  Activation function;
  bool normalised;
  Place x, out;
  void run(Frame& frame) const override;

 private:
  struct Share {
    int64_t row;
    float weight;
  };
  std::vector<std::vector<Share>> route(const float* scores, int64_t rows) const;
};

struct LMHead : Operation {
  Matrix matrix;
  float divisor, soft_cap;  // 0 for no cap
  Place x;                  // results go to `StepInputs::logits`, rows following each other
  void run(Frame& frame) const override;
};

}  // namespace modulm
