// The module that Python imports: loading it registers the ops, as fragments of a namespace that nobody has to define.
#include <Python.h>

namespace opdock {
PyMethodDef* direct_methods();  // in direct.cu
}

PyMODINIT_FUNC PyInit__C(void) {
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C",    nullptr, -1, opdock::direct_methods(),
                               nullptr,               nullptr, nullptr, nullptr};
  return PyModule_Create(&module);
}
