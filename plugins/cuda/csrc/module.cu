// The library's namespace, and the module that Python imports: importing it registers the ops.
#include <Python.h>
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(opdock_cuda, m) {}

namespace opdock {
PyMethodDef* direct_methods();  // in direct.cu
}

PyMODINIT_FUNC PyInit__C(void) {
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C",    nullptr, -1, opdock::direct_methods(),
                               nullptr,               nullptr, nullptr, nullptr};
  return PyModule_Create(&module);
}
