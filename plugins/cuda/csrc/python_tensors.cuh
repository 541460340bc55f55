// Tensors as Python holds them: looked at through DLPack's exchange interface, checked, and made. For direct.cu alone,
// whose module they belong to.
#pragma once

#include <Python.h>

#include <cstring>
#include <exception>
#include <initializer_list>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include "dlpack.cuh"
#include "view.cuh"

namespace opdock {
namespace {

constexpr int64_t kNarrow = 64, kLimit = int64_t(1) << 31;
constexpr int kMost = 8;  // dimensions

// What Python gives `connect`, each with a reference of its own; `api` is null until then.
struct {
  const dlpack::ExchangeApi* api;
  int32_t device;
  PyObject *tensor, *parameter, *fp8, *fp8_like, *float_like, *none, *tanh, *empty_like, *new_empty, *is_negative,
      *seen_by;
} py;
PyObject *requires_grad_, *epsilon_type_;

// An owned reference.
class Owned {
 public:
  explicit Owned(PyObject* object = nullptr) : object_(object) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  PyObject* release() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }
  void reset(PyObject* object) {
    Py_XDECREF(object_);
    object_ = object;
  }

 private:
  PyObject* object_;
};

// Another thread may run Python while a launch waits for room in the queue.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() { PyEval_RestoreThread(state_); }

 private:
  PyThreadState* state_;
};

// Looks at a tensor of a plain type that is on a GPU and has memory; false for anything else, without an error.
bool look(PyObject* object, View* out) {
  const PyTypeObject* type = Py_TYPE(object);
  if (type != (PyTypeObject*)py.tensor && type != (PyTypeObject*)py.parameter) return false;
  dlpack::DLTensor seen{};
  if (py.api->look(object, &seen) != 0) {  // such as a tensor of vmap: torch's type, and no memory of its own
    PyErr_Clear();
    return false;
  }
  if (seen.device.kind != py.device || seen.data == nullptr || seen.byte_offset != 0 || seen.type.lanes != 1 ||
      seen.dims > kMost || (seen.dims > 0 && seen.strides == nullptr)) {
    return false;
  }
  ScalarType kind;
  switch (seen.type.code << 8 | seen.type.bits) {
    case dlpack::kBfloat << 8 | 16: kind = ScalarType::BFloat16; break;
    case dlpack::kFloat << 8 | 16: kind = ScalarType::Half; break;
    case dlpack::kFloat << 8 | 32: kind = ScalarType::Float; break;
    case dlpack::kInt << 8 | 64: kind = ScalarType::Long; break;
    case dlpack::kInt << 8 | 32: kind = ScalarType::Int; break;
    case dlpack::kFloat8E4m3fn << 8 | 8: kind = ScalarType::Float8_e4m3fn; break;
    default: return false;
  }
  *out = View(seen.data, seen.sizes, seen.strides, seen.dims, kind, seen.type.bits / 8, seen.device.index);
  return out->numel() > 0;
}

bool is_float(ScalarType type) {
  return type == ScalarType::BFloat16 || type == ScalarType::Half || type == ScalarType::Float;
}

// Each stride covers what is inside it, and the last dimension is dense: no two elements share memory.
bool nested(const View& t) {
  int64_t inside = 1;
  for (int64_t d = t.dim() - 1; d >= 0; --d) {
    if (d == t.dim() - 1 ? t.stride(d) != 1 : t.size(d) > 1 && t.stride(d) < inside) return false;
    if (t.size(d) > 1) inside = t.size(d) * t.stride(d);
  }
  return true;
}

// Dense, with the strides that a new tensor has.
bool dense(const View& t) {
  int64_t inside = 1;
  for (int64_t d = t.dim() - 1; d >= 0; inside *= t.size(d--)) {
    if (t.stride(d) != inside) return false;
  }
  return true;
}

bool same_sizes(const View& a, const View& b) {
  if (a.dim() != b.dim()) return false;
  for (int64_t d = 0; d < a.dim(); ++d) {
    if (a.size(d) != b.size(d)) return false;
  }
  return true;
}

// Of these tensors none wants a gradient, where gradients are on. False, too, where torch fails to say.
bool without_grad(std::initializer_list<PyObject*> tensors) {
  if (!aoti_torch_grad_mode_is_enabled()) return true;
  for (PyObject* t : tensors) {
    if (t == nullptr) continue;
    const Owned said(PyObject_GetAttr(t, requires_grad_));
    if (said.get() == nullptr) PyErr_Clear();
    if (said.get() != Py_False) return false;
  }
  return true;
}

// Nobody has to see the call: no dispatch mode, function mode, trace of torch.jit or profiler on this thread; the
// tensors hold what their bytes say; and their device is the current one.
bool plain(std::initializer_list<PyObject*> tensors, int device) {
  int32_t current = -1;
  if (aoti_torch_get_current_device_index(&current) != 0 || current != device) return false;
  const Py_ssize_t count = PyTuple_Size(py.seen_by);
  for (Py_ssize_t i = 0; i < count; ++i) {  // each says None, False or 0
    const Owned said(PyObject_CallNoArgs(PyTuple_GetItem(py.seen_by, i)));
    if (said.get() == Py_None || said.get() == Py_False) continue;
    if (said.get() != nullptr && PyLong_CheckExact(said.get()) && PyLong_AsLong(said.get()) == 0) continue;
    PyErr_Clear();
    return false;
  }
  for (PyObject* t : tensors) {
    if (t == nullptr) continue;
    const Owned said(PyObject_CallFunctionObjArgs(py.is_negative, t, nullptr));
    if (said.get() == nullptr) PyErr_Clear();
    if (said.get() != Py_False) return false;
  }
  return true;
}

// A new dense tensor of x's sizes, or with another last one; null with a Python error. `like`: keyword arguments, or
// null.
PyObject* make(PyObject* x, const View& seen, int64_t last, PyObject* like) {
  const bool alike = last == seen.last() && dense(seen);
  const Owned args(PyTuple_New(alike ? 1 : 2));
  if (args.get() == nullptr) return nullptr;
  Py_INCREF(x);
  PyTuple_SetItem(args.get(), 0, x);
  if (!alike) {
    PyObject* sizes = PyTuple_New(seen.dim());
    if (sizes == nullptr) return nullptr;
    PyTuple_SetItem(args.get(), 1, sizes);
    for (int64_t d = 0; d < seen.dim(); ++d) {
      PyObject* size = PyLong_FromLongLong(d == seen.dim() - 1 ? last : seen.size(d));
      if (size == nullptr) return nullptr;
      PyTuple_SetItem(sizes, d, size);
    }
  }
  return PyObject_Call(alike ? py.empty_like : py.new_empty, args.get(), like);
}

// Runs a launch without Python's lock; false with a Python error where it throws.
template <typename F> bool launched(F&& launch) {
  try {
    const Unlocked unlocked;
    launch();
    return true;
  } catch (const std::exception& err) {
    PyErr_SetString(PyExc_RuntimeError, err.what());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "opdock_cuda: a launch failed");
  }
  return false;
}

}  // namespace
}  // namespace opdock
