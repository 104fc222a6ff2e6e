// Step programs for Python: sections are built operation by operation, each checked as it is added, then run by one call.
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <optional>
#include <tuple>

#include "bindings.hpp"
#include "linear_dense_arguments.hpp"
#include "program_operations.hpp"

namespace nb = nanobind;

namespace modulm {
namespace {

using At = std::array<int64_t, 3>;  // buffer, offset, stride
using Part = std::tuple<nb::object, bool>;
using Parts = std::vector<Part>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Biased = std::tuple<Parts, std::optional<Floats>>;
using Ids = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Cache = nb::ndarray<nb::ndim<5>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Kernels take it that numbers lie at multiples of their size; numpy does not promise that.
template <class Array>
void require_aligned(const Array& array) {
  require(reinterpret_cast<uintptr_t>(array.data()) % (array.dtype().bits / 8) == 0,
          "Numbers of an array must lie at multiples of their size");
}

Activation activation_named(const std::string& name) {
  if (name == "silu") return Activation::silu;
  if (name == "gelu_pytorch_tanh") return Activation::gelu_tanh;
  if (name == "gelu") return Activation::gelu;
  if (name == "relu") return Activation::relu;
  if (name == "swigluoai") return Activation::swigluoai;
  throw std::invalid_argument("There is no activation '" + name +
                              "'; there are silu, gelu_pytorch_tanh, gelu, relu, swigluoai");
}

// A section, and the Python objects whose memory its operations read.
class SectionBuilder {
 public:
  SectionBuilder(std::vector<int64_t> sizes, std::vector<bool> local) : section_(check_sizes(sizes), local) {
    require(local.empty() || local.size() == sizes.size(), "There must be as many of `local` as of `sizes`");
  }

  // The operations until `end_stretch` leave rows apart, and local buffers are theirs.
  void begin_stretch() {
    require(!closed_ && stretch_ == nullptr, "A stretch begins outside of others, in a section that is not closed");
    stretch_ = std::make_unique<Stretch>();
  }

  void end_stretch() {
    require(stretch_ != nullptr, "No stretch has begun");
    section_.add(std::move(stretch_));
    product_ = nullptr;
  }

  void embedding(const nb::object& weight, const At& out) {
    auto op = next<Embedding>();
    needs_step_ = true;
    op->weight = packed(weight);
    op->out = place(out, op->weight->in_features(), "out");
    keep(std::move(op));
  }

  void linear(const Parts& parts, const std::optional<Floats>& bias, const At& x, const At& out) {
    auto op = next<Linear>();
    op->matrix = matrix(parts, bias);
    op->x = place(x, in_features(op->matrix), "x");
    op->out = place(out, op->matrix.out_features, "out");
    keep(std::move(op));
  }

  void gated_linear(const Parts& parts, const std::optional<Floats>& bias, const std::string& function, const At& x,
                    const At& out) {
    auto op = next<GatedLinear>();
    op->matrix = matrix(parts, bias);
    require(op->matrix.out_features % 2 == 0, "gated_linear: there must be as many gates as ups");
    op->function = activation_named(function);
    op->x = place(x, in_features(op->matrix), "x");
    op->out = place(out, op->matrix.out_features / 2, "out");
    keep(std::move(op));
  }

  void gated_mlp(const Parts& parts, const std::optional<Floats>& bias, const std::string& function, const Parts& down,
                 const std::optional<Floats>& down_bias, const At& x, const At& out) {
    auto op = next<GatedMLP>();
    op->matrix = matrix(parts, bias);
    op->down = matrix(down, down_bias);
    require(op->matrix.out_features == 2 * in_features(op->down),
            "gated_mlp: there must be as many gates as ups, and as many as the second matrix has inputs");
    op->function = activation_named(function);
    op->x = place(x, in_features(op->matrix), "x");
    op->out = place(out, op->down.out_features, "out");
    keep(std::move(op));
  }

  void gated_activation(const std::string& function, int64_t size, const At& x, const At& out) {
    auto op = next<GatedActivation>();
    require(size > 0 && size < kMostNumbers, "gated_activation: size must be positive");
    op->function = activation_named(function);
    op->size = size;
    op->x = place(x, 2 * size, "x");
    op->out = place(out, size, "out");
    keep(std::move(op));
  }

  void rms_norm(const Floats& weight, int64_t count, double eps, bool unit_offset, const At& x, const At& out) {
    auto op = next<RmsNorm>();
    const int64_t size = int64_t(weight.shape(0));
    require_aligned(weight);
    require(size > 0 && count > 0 && count < kMostNumbers / size, "rms_norm: sizes must be positive");
    op->weight.assign(weight.data(), weight.data() + size);
    op->count = count;
    op->eps = float(eps);
    op->offset = unit_offset ? 1.0f : 0.0f;
    op->x = place(x, count * size, "x");
    op->out = place(out, count * size, "out");
    keep(std::move(op));
  }

  // `alone`: whether nobody else reads a, and b. What makes such a value may add it then.
  void add(int64_t size, const At& a, const At& b, const At& out, const std::array<bool, 2>& alone) {
    auto op = next<Add>();
    op->size = size;
    op->a = place(a, size, "a");
    op->b = place(b, size, "b");
    op->out = place(out, size, "out");
    SummedProduct* const before = product_;
    if (before != nullptr && ((alone[0] && op->a == before->out) || (alone[1] && op->b == before->out))) before->sum = op.get();
    keep(std::move(op));
  }

  void scale(int64_t size, double factor, const At& x, const At& out) {
    auto op = next<Scale>();
    op->size = size;
    op->factor = float(factor);
    op->x = place(x, size, "x");
    op->out = place(out, size, "out");
    keep(std::move(op));
  }

  void rotary_tables(const std::vector<float>& inverse, double scaling, const std::vector<float>& long_inverse,
                     int64_t long_from, const std::optional<std::tuple<double, double, int64_t>>& dynamic,
                     const At& cos, const At& sin) {
    auto op = next<RotaryTables>();
    needs_step_ = true;
    require(!inverse.empty(), "rotary_tables: there must be frequencies");
    require(long_inverse.empty() || long_inverse.size() == inverse.size(),
            "rotary_tables: long_inverse must be as long as inverse");
    op->inverse = inverse;
    op->long_inverse = long_inverse;
    op->scaling = float(scaling);
    op->long_from = long_from;
    op->is_dynamic = dynamic.has_value();
    if (dynamic) {
      std::tie(op->theta, op->factor, op->stated) = *dynamic;
      require(inverse.size() > 1 && op->stated > 0, "rotary_tables: a dynamic base needs two frequencies and a length");
    }
    needs_lengths_ = needs_lengths_ || dynamic || !long_inverse.empty();
    op->cos = place(cos, 2 * int64_t(inverse.size()), "cos");
    op->sin = place(sin, 2 * int64_t(inverse.size()), "sin");
    keep(std::move(op));
  }

  // `cache` is [num_blocks, 2, num_kv_heads, block_size, head_size], of bytes with head_size + 4; `cache_type` says of
  // what.
  void attention(const Cache& cache, const std::string& cache_type, int64_t num_heads, double scale, int64_t window,
                 double soft_cap, bool exact, int64_t group, const std::optional<Floats>& sinks,
                 std::vector<float> key_scales, std::vector<float> value_scales, const At& query, const At& key,
                 const At& value, const At& out, int64_t rope_width, const At& cos, const At& sin) {
    auto op = next<Attention>();
    needs_step_ = true;
    AttentionCall& call = op->call;
    call = {};
    set_cache(call, cache, cache_type);
    require(cache.shape(0) > 0 && call.block_size > 0, "attention: the cache must have blocks, and they room");
    require(call.head_size > 0 && call.head_size <= kLargestHead, "attention: head_size must be between 1 and 512");
    require(call.num_kv_heads > 0 && num_heads > 0 && num_heads < kMostNumbers / call.head_size &&
                num_heads % call.num_kv_heads == 0,
            "attention: the number of query heads must be a multiple of the number of key heads");
    require(window >= 0 && soft_cap >= 0.0 && std::isfinite(soft_cap) && std::isfinite(scale),
            "attention: window and soft_cap must not be negative (0 is none), and all numbers finite");
    require(group >= 0 && group < 1024, "attention: there is no such KV group");
    call.num_heads = num_heads;
    set_scales(call, call.key_scales, op->key_scales = std::move(key_scales));
    set_scales(call, call.value_scales, op->value_scales = std::move(value_scales));
    call.scale = float(scale);
    call.window = int32_t(std::min<int64_t>(window, INT32_MAX));
    call.soft_cap = float(soft_cap);
    call.exact = exact;
    if (sinks) {
      require(int64_t(sinks->shape(0)) == num_heads, "attention: there must be one sink for each query head");
      require_aligned(*sinks);
      op->sinks.assign(sinks->data(), sinks->data() + num_heads);
    }
    call.query_head_stride = call.key_head_stride = call.value_head_stride = call.head_size;
    op->num_blocks = int64_t(cache.shape(0));
    op->group = size_t(group);
    num_groups_ = std::max(num_groups_, op->group + 1);
    block_size_ = block_size_ == 0 ? call.block_size : block_size_;
    require(block_size_ == call.block_size, "attention: all caches must have one block size");
    op->query = place(query, num_heads * call.head_size, "query");
    op->key = place(key, call.num_kv_heads * call.head_size, "key");
    op->value = place(value, call.num_kv_heads * call.head_size, "value");
    op->out = place(out, num_heads * call.head_size, "out");
    require(op->out.stride == num_heads * call.head_size, "attention: rows of out must follow each other");
    require(rope_width >= 0, "attention: rope_width must not be negative (0 is none)");
    op->is_rotated = rope_width > 0;
    if (op->is_rotated) {
      require(rope_width % 2 == 0 && rope_width <= call.head_size, "attention: an even width is rotated, up to a head");
      call.rope_width = rope_width;
      op->cos = place(cos, rope_width, "cos");
      op->sin = place(sin, rope_width, "sin");
      require(op->cos.stride == rope_width && op->sin.stride == rope_width,
              "attention: rows of cos and sin must follow each other");
    }
    caches_.push_back(cache);
    keep(std::move(op));
  }

  // Matrices with their biases, which may be None.
  void sparse_moe(const Biased& router, const std::vector<Biased>& gate_up, const std::vector<Biased>& down,
                  int64_t top_k, const std::string& function, bool normalised, const At& x, const At& out) {
    auto op = next<SparseMoE>();
    op->router = matrix(router);
    const int64_t count = op->router.out_features;
    op->hidden_size = in_features(op->router);
    require(int64_t(gate_up.size()) == count && int64_t(down.size()) == count,
            "sparse_moe: there must be one gate_up and one down for each result of the router");
    require(top_k > 0 && top_k <= count, "sparse_moe: top_k must be between 1 and the number of experts");
    for (const Biased& one : gate_up) op->gate_up.push_back(matrix(one));
    for (const Biased& one : down) op->down.push_back(matrix(one));
    op->intermediate_size = in_features(op->down[0]);
    for (int64_t i = 0; i < count; ++i) {
      const Matrix &wide = op->gate_up[size_t(i)], &narrow = op->down[size_t(i)];
      require(in_features(wide) == op->hidden_size && wide.out_features == 2 * op->intermediate_size &&
                  in_features(narrow) == op->intermediate_size && narrow.out_features == op->hidden_size,
              "sparse_moe: experts must be [2 * intermediate, hidden] and [hidden, intermediate]");
    }
    op->top_k = top_k;
    op->function = activation_named(function);
    op->normalised = normalised;
    op->x = place(x, op->hidden_size, "x");
    op->out = place(out, op->hidden_size, "out");
    keep(std::move(op));
  }

  void lm_head(const Parts& parts, double divisor, double soft_cap, const At& x) {
    auto op = next<LMHead>();
    op->matrix = matrix(parts, {});
    require(divisor != 0.0 && std::isfinite(divisor) && std::isfinite(soft_cap) && soft_cap >= 0.0,
            "lm_head: divisor must be a number other than 0, soft_cap not negative");
    op->divisor = float(divisor);
    op->soft_cap = float(soft_cap);
    op->x = place(x, in_features(op->matrix), "x");
    num_logits_ = op->matrix.out_features;
    keep(std::move(op));
  }

  // From now on nothing is added, as a program runs it.
  void close() {
    require(stretch_ == nullptr, "A stretch has not ended");
    closed_ = true;
  }

  // Weights of another section are used after those of this one.
  void precede(const SectionBuilder& other) {
    if (last_ != nullptr && other.first_ != nullptr) last_->set_next(other.first_->stream());
  }

  bool is_closed() const { return closed_; }
  bool needs_step() const { return needs_step_; }
  Section& section() { return section_; }
  size_t num_groups() const { return num_groups_; }
  int64_t block_size() const { return block_size_; }
  int64_t num_logits() const { return num_logits_; }
  bool needs_lengths() const { return needs_lengths_; }

  Place place(const At& at, int64_t size, const char* what) const {
    const Place found{at[0], at[1], at[2]};
    if (!section_.frame().holds(found, size)) {
      throw std::invalid_argument(std::string("The place of ") + what + " is outside of its buffer");
    }
    require(stretch_ != nullptr || !section_.frame().is_local(found), "Local buffers belong to stretches");
    return found;
  }

 private:
  template <class Made>
  std::unique_ptr<Made> next() const {
    require(!closed_, "This section belongs to a program and takes no more operations");
    require(num_logits_ == 0, "lm_head is the last operation of a section");
    return std::make_unique<Made>();
  }

  template <class Made>
  void keep(std::unique_ptr<Made> operation) {
    product_ = nullptr;
    if constexpr (std::is_base_of_v<SummedProduct, Made>) {
      if (stretch_ != nullptr) product_ = operation.get();
    }
    if (stretch_ == nullptr) return section_.add(std::move(operation));
    stretch_->add(std::move(operation));
  }

  static std::vector<int64_t> check_sizes(const std::vector<int64_t>& sizes) {
    for (const int64_t size : sizes) {
      require(size > 0 && size < (int64_t(1) << 32), "A buffer must have 1 to 2^32 numbers per row");
    }
    return sizes;
  }

  PackedWeight* packed(const nb::object& weight) {
    PackedWeight* found = nullptr;
    if (!nb::try_cast(weight, found) || found == nullptr) throw nb::type_error("There must be a packed weight");
    kept_.push_back(weight);
    return found;
  }

  Matrix matrix(const Parts& parts, const std::optional<Floats>& bias) {
    require(!parts.empty(), "A matrix has at least one part");
    Matrix made;
    for (const Part& part : parts) {
      PackedWeight* weight = packed(std::get<0>(part));
      if (last_ != nullptr) last_->set_next(weight->stream());
      if (first_ == nullptr) first_ = weight;
      last_ = weight;
      made.parts.push_back({weight, std::get<1>(part)});
      made.out_features += made.parts.back().weight->out_features();
      require(made.parts.back().weight->in_features() == in_features(made), "Parts of a matrix must have equal inputs");
    }
    if (bias) {
      require(int64_t(bias->shape(0)) == made.out_features, "bias must have one number for each output");
      require_aligned(*bias);
      made.bias.assign(bias->data(), bias->data() + made.out_features);
    }
    return made;
  }

  Matrix matrix(const Biased& biased) { return matrix(std::get<0>(biased), std::get<1>(biased)); }

  static int64_t in_features(const Matrix& matrix) { return matrix.in_features(); }

  static CacheType cache_type_named(const std::string& name) {
    if (name == "float32") return CacheType::float32;
    if (name == "bfloat16") return CacheType::bfloat16;
    if (name == "float16") return CacheType::float16;
    if (name == "fp8_e4m3") return CacheType::e4m3;
    if (name == "fp8_e5m2") return CacheType::e5m2;
    require(name == "int8_per_token_head",
            "attention: the cache must be float32, bfloat16, float16, int8_per_token_head, fp8_e4m3 or fp8_e5m2");
    return CacheType::int8;
  }

  // `scales` stay where they are as long as the operation.
  static void set_scales(const AttentionCall& call, const float*& to, const std::vector<float>& scales) {
    if (scales.empty()) return;
    require(call.cache_type == CacheType::e4m3 || call.cache_type == CacheType::e5m2,
            "attention: only a cache of 8-bit floats has scales of its own");
    require(int64_t(scales.size()) == call.num_kv_heads, "attention: there must be a scale for each head of keys");
    for (float scale : scales) require(scale > 0.0f && std::isfinite(scale), "attention: scales must be above 0");
    to = scales.data();
  }

  static void set_cache(AttentionCall& call, const Cache& cache, const std::string& name) {
    call.cache_type = cache_type_named(name);
    const bool is_16 = call.cache_type == CacheType::bfloat16 || call.cache_type == CacheType::float16;
    const int bits = call.cache_type == CacheType::float32 ? 32 : is_16 ? 16 : 8;
    require(cache.dtype().bits == bits && cache.dtype().lanes == 1 && cache.shape(1) == 2,
            "attention: the cache must be [num_blocks, 2, num_kv_heads, block_size, head_size] of its type");
    require_aligned(cache);
    call.cache = cache.data();
    call.num_kv_heads = int64_t(cache.shape(2));
    call.block_size = int64_t(cache.shape(3));
    call.head_size = int64_t(cache.shape(4)) - scale_size(call.cache_type);
    require(scales_fit(call.cache_type, cache.data(), call.head_size),
          "attention: in a cache of int8 head_size is a multiple of 4, and memory begins at one");
  }

  Section section_;
  std::unique_ptr<Stretch> stretch_;  // that has begun
  SummedProduct* product_ = nullptr;  // of this stretch, if it was added last
  std::vector<nb::object> kept_;
  PackedWeight *first_ = nullptr, *last_ = nullptr;  // of the weights, in the order of their use
  std::vector<Cache> caches_;
  size_t num_groups_ = 0;
  int64_t block_size_ = 0, num_logits_ = 0;
  bool needs_lengths_ = false, needs_step_ = false, closed_ = false;
};

class Program {
 public:
  // Rows of `hidden` of the first section go to `rows` of the second, whose last operation is `lm_head`.
  Program(SectionBuilder& forward, SectionBuilder& logits, const At& hidden, const At& rows, int64_t size)
      : forward_(forward), logits_(logits), size_(size) {
    require(!forward.is_closed() && !logits.is_closed() && &forward != &logits,
            "A program has two sections of its own");
    require(forward.num_logits() == 0 && logits.num_logits() > 0, "The second section alone must end with lm_head");
    require(!logits.needs_step(), "The second section sees rows of the first one's results and nothing of the step");
    hidden_ = forward.place(hidden, size, "hidden");
    rows_ = logits.place(rows, size, "rows");
    forward.precede(logits);
    forward.close();
    logits.close();
  }

  void forward(const Ids& token_ids, const Ids& positions, const std::optional<Ids>& lengths,
               const std::vector<AttentionPlan*>& plans) {
    const size_t rows = token_ids.shape(0);
    require(rows > 0 && positions.shape(0) == rows, "There must be tokens, and a position for each");
    require(lengths.has_value() ? lengths->shape(0) == rows : !forward_.needs_lengths(),
            "There must be a length for each token where frequencies depend on it");
    for (const Ids* array : {&token_ids, &positions}) require_aligned(*array);
    if (lengths) require_aligned(*lengths);
    require(plans.size() >= forward_.num_groups(), "There must be a plan for each KV group");
    for (const AttentionPlan* plan : plans) {
      require(plan != nullptr && plan->num_tokens() == int64_t(rows), "A plan must be of the step's tokens");
      require(plan->block_size() == forward_.block_size(), "A plan must have the caches' block size");
    }
    const nb::gil_scoped_release release;
    const std::lock_guard<std::mutex> guard(one_call_);
    computed_ = 0;
    forward_.section().prepare(int64_t(rows));
    forward_.section().run({token_ids.data(), positions.data(), lengths ? lengths->data() : nullptr, plans}, pool());
    computed_ = int64_t(rows);
  }

  void logits(const Ids& index, const Logits& out) {
    const int64_t rows = int64_t(index.shape(0));
    require(rows > 0 && int64_t(out.shape(0)) == rows && int64_t(out.shape(1)) == logits_.num_logits(),
            "out must be [rows, vocabulary]");
    require_aligned(index);
    require_aligned(out);
    const nb::gil_scoped_release release;
    const std::lock_guard<std::mutex> guard(one_call_);
    require_indices(index.data(), rows, computed_);
    Frame& frame = logits_.section().prepare(rows);
    for (int64_t row = 0; row < rows; ++row) {
      std::copy_n(forward_.section().frame().at(hidden_, index.data()[row]), size_, frame.at(rows_, row));
    }
    StepInputs inputs;
    inputs.logits = out.data();
    logits_.section().run(inputs, pool());
  }

  // The hidden states of the last `forward`, copied.
  void hidden(const Logits& out) {
    const nb::gil_scoped_release release;
    const std::lock_guard<std::mutex> guard(one_call_);
    require(int64_t(out.shape(0)) == computed_ && int64_t(out.shape(1)) == size_, "out must be [rows, hidden size]");
    require_aligned(out);
    for (int64_t row = 0; row < computed_; ++row) {
      std::copy_n(forward_.section().frame().at(hidden_, row), size_, out.data() + row * size_);
    }
  }

  int64_t size_bytes() const {
    return forward_.section().frame().size_bytes() + logits_.section().frame().size_bytes();
  }

 private:
  SectionBuilder& forward_;
  SectionBuilder& logits_;
  Place hidden_, rows_;
  int64_t size_, computed_ = 0;
  std::mutex one_call_;
};

}  // namespace

void bind_packed_weight(nb::module_& m) {
  nb::class_<PackedWeight>(m, "PackedWeight", "What all packed weights have in common for step programs.")
      .def_prop_ro("out_features", &PackedWeight::out_features)
      .def_prop_ro("in_features", &PackedWeight::in_features);
}

void bind_program(nb::module_& m) {
  const auto same = [](const char* name) { return nb::arg(name).noconvert(); };
  const auto named = [](const char* name) { return nb::arg(name); };
  const At none{0, 0, 0};
  nb::class_<SectionBuilder>(m, "Section", "Operations over buffers of so many numbers per row; see program.py.")
      .def(nb::init<std::vector<int64_t>, std::vector<bool>>(), named("sizes"), nb::arg("local") = std::vector<bool>())
      .def("begin_stretch", &SectionBuilder::begin_stretch)
      .def("end_stretch", &SectionBuilder::end_stretch)
      .def("embedding", &SectionBuilder::embedding, named("weight"), named("out"))
      .def("linear", &SectionBuilder::linear, named("parts"), same("bias").none(), named("x"), named("out"))
      .def("gated_linear", &SectionBuilder::gated_linear, named("parts"), same("bias").none(), named("function"),
           named("x"), named("out"))
      .def("gated_mlp", &SectionBuilder::gated_mlp, named("parts"), same("bias").none(), named("function"),
           named("down"), same("down_bias").none(), named("x"), named("out"))
      .def("gated_activation", &SectionBuilder::gated_activation, named("function"), named("size"), named("x"),
           named("out"))
      .def("rms_norm", &SectionBuilder::rms_norm, same("weight"), named("count"), named("eps"), named("unit_offset"),
           named("x"), named("out"))
      .def("add", &SectionBuilder::add, named("size"), named("a"), named("b"), named("out"),
           nb::arg("alone") = std::array<bool, 2>{})
      .def("scale", &SectionBuilder::scale, named("size"), named("factor"), named("x"), named("out"))
      .def("rotary_tables", &SectionBuilder::rotary_tables, named("inverse"), named("scaling"), named("long_inverse"),
           named("long_from"), named("dynamic").none(), named("cos"), named("sin"))
      .def("attention", &SectionBuilder::attention, same("cache"), named("cache_type"), named("num_heads"),
           named("scale"), named("window"), named("soft_cap"), named("exact"), named("group"), same("sinks").none(),
           named("key_scales"), named("value_scales"), named("query"), named("key"), named("value"), named("out"),
           nb::arg("rope_width") = 0, nb::arg("cos") = none, nb::arg("sin") = none)
      .def("sparse_moe", &SectionBuilder::sparse_moe, named("router"), named("gate_up"), named("down"), named("top_k"),
           named("function"), named("normalised"), named("x"), named("out"))
      .def("lm_head", &SectionBuilder::lm_head, named("parts"), named("divisor"), named("soft_cap"), named("x"));
  nb::class_<Program>(m, "Program", "Two sections: tokens to hidden states, some of their rows to logits.")
      .def(nb::init<SectionBuilder&, SectionBuilder&, const At&, const At&, int64_t>(), named("forward"),
           named("logits"), named("hidden"), named("rows"), named("size"), nb::keep_alive<1, 2>(),
           nb::keep_alive<1, 3>())
      .def("forward", &Program::forward, same("token_ids"), same("positions"), same("lengths").none(), named("plans"))
      .def("logits", &Program::logits, same("index"), same("out"))
      .def("hidden", &Program::hidden, same("out"))
      .def_prop_ro("size_bytes", &Program::size_bytes);
}

}  // namespace modulm
