// The library's namespace, and the module that Python imports: importing it registers the ops.
#include <Python.h>
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(opdock_cuda, m) {}

#ifdef OPDOCK_TUNING
namespace opdock {
int tuned_items = 0;
}
extern "C" __attribute__((visibility("default"))) void opdock_tune(int items) { opdock::tuned_items = items; }
#endif

PyMODINIT_FUNC PyInit__C(void) {
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&module);
}
