// The kernels by the short way: functions of the Python module that look at tensors through DLPack's exchange interface
// and launch, past torch's dispatcher. Each takes the arguments of its IR op, all by position, and comes twice:
//
//   fits_NAME  True where run_NAME would take the arguments as far as their facts go, else False
//   run_NAME   the op's results, or None: then nothing was done, and the dispatcher has to be asked
//
// They take plain tensors in the common layouts, and nothing that somebody else has to see: see `plain`.
#include "python_tensors.cuh"

namespace opdock {
namespace {

PyObject* answer(bool yes) { return PyBool_FromLong(yes); }

PyObject* declined() { Py_RETURN_NONE; }

// -- the ops of rows

// What the arguments of an op are, one letter each. Tensors: x; r, the residual; w, a weight or None; s, a scale; b, a
// bound of scales or None. e: the epsilon. V: None. D: float8_e4m3fn. A: "none" or "tanh".
struct RowsCall {
  PyObject *x = nullptr, *residual = nullptr, *weight = nullptr, *scale = nullptr, *bound = nullptr;
  double epsilon = 0.0;
  bool tanh = false;
  View x_view, residual_view, weight_view, scale_view, bound_view;
};

bool is_scale(const View& t, const View& x) {
  return t.scalar_type() == ScalarType::Float && t.numel() == 1 && t.get_device_index() == x.get_device_index();
}

bool read_rows(const char* letters, bool gated, PyObject* const* args, Py_ssize_t count, RowsCall* to) {
  if (py.api == nullptr || count != (Py_ssize_t)std::strlen(letters)) return false;
  RowsCall& at = *to;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const given = args[i];
    switch (letters[i]) {
      case 'x': at.x = given; break;
      case 'r': at.residual = given; break;
      case 'w': at.weight = given == Py_None ? nullptr : given; break;
      case 's': at.scale = given; break;
      case 'b': at.bound = given == Py_None ? nullptr : given; break;
      case 'e':
        if ((PyObject*)Py_TYPE(given) != epsilon_type_) return false;
        at.epsilon = PyFloat_AsDouble(given);
        break;
      case 'V':
        if (given != Py_None) return false;
        break;
      case 'D':
        if (given != py.fp8) return false;
        break;
      default:
        if (given != py.none && given != py.tanh) return false;
        at.tanh = given == py.tanh;
    }
  }
  const View& x = at.x_view;
  if (!look(at.x, &at.x_view) || !is_float(x.scalar_type()) || x.dim() < 1) return false;
  const int64_t width = x.last();
  if (width < kNarrow || width >= kLimit || x.numel() / width >= kLimit || (gated && width % 2 != 0)) return false;
  if (!nested(x) || (x.dim() > 3 && !dense(x))) return false;
  if (at.weight != nullptr) {
    const View& weight = at.weight_view;
    if (!look(at.weight, &at.weight_view) || weight.scalar_type() != x.scalar_type() || weight.dim() != 1 ||
        weight.size(0) != width || weight.stride(0) != 1 || weight.get_device_index() != x.get_device_index()) {
      return false;
    }
  }
  if (at.residual != nullptr) {
    const View& residual = at.residual_view;
    if (at.residual == at.x || !look(at.residual, &at.residual_view) || residual.scalar_type() != x.scalar_type() ||
        residual.get_device_index() != x.get_device_index() || !same_sizes(residual, x) || !nested(residual) ||
        (x.dim() > 3 && !dense(residual))) {
      return false;
    }
  }
  if (at.scale != nullptr && !(look(at.scale, &at.scale_view) && is_scale(at.scale_view, x))) return false;
  if (at.bound != nullptr && !(look(at.bound, &at.bound_view) && is_scale(at.bound_view, x))) return false;
  return without_grad({at.x, at.residual, at.weight});
}

template <In IN> constexpr bool kGated = IN != In::Plain && IN != In::Add;

template <In IN, bool NORM, Out OUT>
bool run_rows(const RowsCall& at, const View& y, const View* scales, const View* sum) {
  auto given = [](PyObject* object, const View& view) { return object == nullptr ? nullptr : &view; };
  return launched([&] {
    rows_op<IN, NORM, OUT>(at.x_view, given(at.residual, at.residual_view), sum, given(at.weight, at.weight_view), y,
                           scales, given(at.scale, at.scale_view), given(at.bound, at.bound_view), at.epsilon);
  });
}

constexpr char kNorm[] = "xweV", kAddNorm[] = "xrweV", kNormStatic[] = "xwseD", kNormToken[] = "xwebD";
constexpr char kAddNormStatic[] = "xrwseD", kAddNormToken[] = "xrwebD", kGate[] = "x", kGateBy[] = "xA";
constexpr char kStatic[] = "xsD", kToken[] = "xbD";

template <In IN, const char* LETTERS> PyObject* fits_rows(PyObject*, PyObject* const* args, Py_ssize_t count) {
  RowsCall rows;
  return answer(read_rows(LETTERS, kGated<IN>, args, count, &rows));
}

// In place: x becomes the norm, the residual the sum.
PyObject* run_fused_add_rms_norm(PyObject*, PyObject* const* args, Py_ssize_t count) {
  RowsCall at;
  if (!read_rows(kAddNorm, false, args, count, &at)) return declined();
  if (!plain({at.x, at.residual, at.weight}, at.x_view.get_device_index())) return declined();
  if (!run_rows<In::Add, true, Out::Same>(at, at.x_view, nullptr, &at.residual_view)) return nullptr;
  return PyTuple_Pack(2, at.x, at.residual);
}

// With new results: y, the scales of the rows, the sum, those of them that there are.
template <In IN, bool NORM, Out OUT, const char* LETTERS>
PyObject* run_new_rows(PyObject*, PyObject* const* args, Py_ssize_t count) {
  RowsCall at;
  if (!read_rows(LETTERS, kGated<IN>, args, count, &at)) return declined();
  if (!plain({at.x, at.residual, at.weight, at.scale, at.bound}, at.x_view.get_device_index())) return declined();
  const int64_t width = kGated<IN> ? at.x_view.last() / 2 : at.x_view.last();
  Owned y, scales, sum;
  View y_view, scales_view, sum_view;
  auto fill = [&](Owned& to, View* view, int64_t last, PyObject* like) {
    to.reset(make(at.x, at.x_view, last, like));
    return to.get() != nullptr && look(to.get(), view);
  };
  bool made = fill(y, &y_view, width, OUT == Out::Same ? nullptr : py.fp8_like);
  if constexpr (OUT == Out::Token) made = made && fill(scales, &scales_view, 1, py.float_like);
  if constexpr (IN == In::Add) made = made && fill(sum, &sum_view, width, nullptr);
  if (!made) return PyErr_Occurred() != nullptr ? nullptr : declined();
  const View* const scales_at = OUT == Out::Token ? &scales_view : nullptr;
  const View* const sum_at = IN == In::Add ? &sum_view : nullptr;
  bool done;
  if constexpr (IN == In::Gelu) {
    done = at.tanh ? run_rows<In::GeluTanh, NORM, OUT>(at, y_view, scales_at, sum_at)
                   : run_rows<In::Gelu, NORM, OUT>(at, y_view, scales_at, sum_at);
  } else {
    done = run_rows<IN, NORM, OUT>(at, y_view, scales_at, sum_at);
  }
  if (!done) return nullptr;
  if constexpr (OUT == Out::Token && IN == In::Add) {
    return PyTuple_Pack(3, y.get(), scales.get(), sum.get());
  } else if constexpr (OUT == Out::Token) {
    return PyTuple_Pack(2, y.get(), scales.get());
  } else if constexpr (IN == In::Add) {
    return PyTuple_Pack(2, y.get(), sum.get());
  } else {
    return y.release();
  }
}

// -- rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)

struct Rotary {
  View positions, query, key, cache;
  int64_t head_size;
};

bool are_heads(const View& t, int64_t tokens, int64_t head_size) {
  const bool fits = t.dim() == 2 ? t.size(1) % head_size == 0 : t.dim() == 3 && t.size(2) == head_size;
  return fits && t.size(0) == tokens && nested(t);
}

bool read_rotary(PyObject* const* args, Py_ssize_t count, Rotary* at) {
  if (py.api == nullptr || count != 6 || !PyLong_CheckExact(args[3])) return false;
  if (args[5] != Py_True && args[5] != Py_False) return false;
  at->head_size = PyLong_AsLongLong(args[3]);
  if (at->head_size <= 0 || at->head_size >= kLimit) {
    PyErr_Clear();
    return false;
  }
  if (!look(args[0], &at->positions) || !look(args[1], &at->query) || !look(args[2], &at->key) ||
      !look(args[4], &at->cache)) {
    return false;
  }
  const View &positions = at->positions, &query = at->query, &key = at->key, &cache = at->cache;
  const ScalarType type = query.scalar_type();
  const int device = query.get_device_index();
  if (!is_float(type) || key.scalar_type() != type) return false;
  if (cache.scalar_type() != type && cache.scalar_type() != ScalarType::Float) return false;
  if (positions.scalar_type() != ScalarType::Long && positions.scalar_type() != ScalarType::Int) return false;
  if (positions.dim() != 1 || positions.stride(0) != 1 || positions.size(0) >= kLimit) return false;
  for (const View* other : {&positions, &key, &cache}) {
    if (other->get_device_index() != device) return false;
  }
  if (cache.dim() != 2 || cache.size(1) % 2 != 0 || cache.size(1) > at->head_size || cache.stride(1) != 1) return false;
  const int64_t tokens = positions.size(0);
  return are_heads(query, tokens, at->head_size) && are_heads(key, tokens, at->head_size) &&
         without_grad({args[1], args[2], args[4]});
}

PyObject* fits_rotary(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Rotary at;
  return answer(read_rotary(args, count, &at));
}

PyObject* run_rotary(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Rotary at;
  if (!read_rotary(args, count, &at)) return declined();
  if (!plain({args[1], args[2], args[4]}, at.query.get_device_index())) return declined();
  const bool is_neox = args[5] == Py_True;
  if (!launched([&] { rotary(at.positions, at.query, at.key, at.head_size, at.cache, is_neox); })) return nullptr;
  return PyTuple_Pack(2, args[1], args[2]);
}

// -- the module

// connect(capsule, device_kind, Tensor, Parameter, fp8, {"dtype": fp8}, {"dtype": float32}, "none", "tanh", empty_like,
// new_empty, is_neg, (what sees calls, ...)): from now on tensors are looked at. False where torch's interface is
// another.
PyObject* connect(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 13) {
    PyErr_SetString(PyExc_TypeError, "connect takes 13 arguments");
    return nullptr;
  }
  const auto* api = (const dlpack::ExchangeApi*)PyCapsule_GetPointer(args[0], dlpack::kCapsule);
  if (api == nullptr) return nullptr;
  const long device = PyLong_AsLong(args[1]);
  if (device == -1 && PyErr_Occurred() != nullptr) return nullptr;
  if (!PyType_Check(args[2]) || !PyType_Check(args[3]) || !PyDict_Check(args[5]) || !PyDict_Check(args[6]) ||
      !PyTuple_Check(args[12])) {
    PyErr_SetString(PyExc_TypeError, "connect takes two types, two dicts and a tuple among its arguments");
    return nullptr;
  }
  while (api != nullptr && api->major > dlpack::kMajor) api = api->older;
  if (api == nullptr || api->major != dlpack::kMajor || api->look == nullptr) return answer(false);
  for (Py_ssize_t i = 0; i < count; ++i) Py_INCREF(args[i]);  // once in a process, and for its whole time
  requires_grad_ = PyUnicode_InternFromString("requires_grad");
  epsilon_type_ = (PyObject*)&PyFloat_Type;
  py = {api,     (int32_t)device, args[2], args[3],  args[4],  args[5], args[6],
            args[7], args[8],         args[9], args[10], args[11], args[12]};
  return answer(requires_grad_ != nullptr);
}

PyMethodDef method(const char* name, PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return {name, (PyCFunction)(void (*)())function, METH_FASTCALL, nullptr};
}

}  // namespace

PyMethodDef* direct_methods() {
#define OPDOCK_NEW_ROWS(NAME, IN, NORM, OUT, LETTERS)   \
  method("fits_" NAME, fits_rows<In::IN, LETTERS>), \
      method("run_" NAME, run_new_rows<In::IN, NORM, Out::OUT, LETTERS>)
  static PyMethodDef methods[] = {
      method("connect", connect),
      OPDOCK_NEW_ROWS("rms_norm", Plain, true, Same, kNorm),
      method("fits_fused_add_rms_norm", fits_rows<In::Add, kAddNorm>),
      method("run_fused_add_rms_norm", run_fused_add_rms_norm),
      method("run_fused_add_rms_norm_functional", run_new_rows<In::Add, true, Out::Same, kAddNorm>),
      OPDOCK_NEW_ROWS("rms_norm_static_fp8_quant", Plain, true, Static, kNormStatic),
      OPDOCK_NEW_ROWS("rms_norm_dynamic_per_token_fp8_quant", Plain, true, Token, kNormToken),
      OPDOCK_NEW_ROWS("fused_add_rms_norm_static_fp8_quant", Add, true, Static, kAddNormStatic),
      OPDOCK_NEW_ROWS("fused_add_rms_norm_dynamic_per_token_fp8_quant", Add, true, Token, kAddNormToken),
      OPDOCK_NEW_ROWS("silu_and_mul", Silu, false, Same, kGate),
      OPDOCK_NEW_ROWS("gelu_and_mul", Gelu, false, Same, kGateBy),
      OPDOCK_NEW_ROWS("silu_and_mul_static_fp8_quant", Silu, false, Static, kStatic),
      OPDOCK_NEW_ROWS("silu_and_mul_dynamic_per_token_fp8_quant", Silu, false, Token, kToken),
      OPDOCK_NEW_ROWS("static_scaled_fp8_quant", Plain, false, Static, kStatic),
      OPDOCK_NEW_ROWS("dynamic_per_token_scaled_fp8_quant", Plain, false, Token, kToken),
      method("fits_rotary_embedding", fits_rotary),
      method("run_rotary_embedding", run_rotary),
      {nullptr, nullptr, 0, nullptr},
  };
#undef OPDOCK_NEW_ROWS
  return methods;
}

}  // namespace opdock
