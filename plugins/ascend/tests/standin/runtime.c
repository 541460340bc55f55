/* A stand-in for the runtime of CANN: its "devices" are the host's memory, and nothing computes on them.

   It is what the real torch_npu is loaded over where there is no CANN. Functions that torch_npu needs to come up, to
   allocate and to copy do so; build.py adds the other names that the wheel asks for, each of which answers with CANN's
   code for an internal error. So a kernel that nobody stands in for fails, as it should, and is never a wrong number.

   STANDIN_NPU_COUNT is the number of devices, 0 by default. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, NO_DEVICE = 107001, OUT_OF_MEMORY = 207001 };
static const size_t ALIGNMENT = 512, MEMORY = (size_t)8 << 30;
static __thread int32_t current;
static uintptr_t next_handle = 4096;

static int devices(void) {
    const char *text = getenv("STANDIN_NPU_COUNT");
    return text ? atoi(text) : 0;
}
static int handle(void **out) {
    *out = (void *)__sync_fetch_and_add(&next_handle, 8);
    return OK;
}
static int allocate(void **out, size_t size) {
    return posix_memalign(out, ALIGNMENT, size ? size : ALIGNMENT) ? OUT_OF_MEMORY : OK;
}

int aclInit(const char *config) { return OK; }
int aclFinalize(void) { return OK; }
const char *aclrtGetSocName(void) { return "Ascend910B3"; }
const char *aclGetRecentErrMsg(void) { return "the stand-in runtime has no kernels"; }
int aclGetDeviceCapability(uint32_t device, int what, int64_t *value) { *value = 24; return OK; }

int aclrtGetDeviceCount(uint32_t *count) { *count = (uint32_t)devices(); return OK; }
int aclrtSetDevice(int32_t device) {
    if (device < 0 || device >= devices()) return NO_DEVICE;
    current = device;
    return OK;
}
int aclrtGetDevice(int32_t *device) { *device = current; return devices() ? OK : NO_DEVICE; }
int aclrtResetDevice(int32_t device) { return OK; }
int aclrtGetCurrentContext(void **context) { *context = (void *)(uintptr_t)(16 + current); return OK; }
int aclrtSetCurrentContext(void *context) { return OK; }
int aclrtDeviceCanAccessPeer(int32_t *can, int32_t a, int32_t b) { *can = 1; return OK; }
int aclrtDeviceEnablePeerAccess(int32_t device, uint32_t flags) { return OK; }

int aclrtCreateStream(void **stream) { return handle(stream); }
int aclrtCreateStreamWithConfig(void **stream, uint32_t priority, uint32_t flag) { return handle(stream); }
int aclrtDestroyStream(void *stream) { return OK; }
int aclrtDestroyStreamForce(void *stream) { return OK; }
int aclrtSynchronizeStream(void *stream) { return OK; }
int aclrtCreateEventExWithFlag(void **event, uint32_t flag) { return handle(event); }
int aclrtCreateEventWithFlag(void **event, uint32_t flag) { return handle(event); }
int aclrtQueryEventStatus(void *event, int *status) { *status = 1; return OK; }
int aclrtQueryEventWaitStatus(void *event, int *status) { *status = 1; return OK; }
int aclrtSynchronizeStreamWithTimeout(void *stream, int32_t ms) { return OK; }
int aclrtSynchronizeEventWithTimeout(void *event, int32_t ms) { return OK; }
int aclrtSynchronizeDevice(void) { return OK; }
int aclrtSynchronizeDeviceWithTimeout(int32_t ms) { return OK; }
int aclrtDestroyEvent(void *event) { return OK; }
int aclrtRecordEvent(void *event, void *stream) { return OK; }
int aclrtResetEvent(void *event, void *stream) { return OK; }
int aclrtStreamWaitEvent(void *stream, void *event) { return OK; }
int aclrtSynchronizeEvent(void *event) { return OK; }
int aclrtEventElapsedTime(float *ms, void *start, void *end) { *ms = 0; return OK; }

int aclrtMalloc(void **out, size_t size, int policy) { return allocate(out, size); }
int aclrtMallocAlign32(void **out, size_t size, int policy) { return allocate(out, size); }
int aclrtMallocHost(void **out, size_t size) { return allocate(out, size); }
int aclrtFree(void *memory) { free(memory); return OK; }
int aclrtFreeHost(void *memory) { free(memory); return OK; }
int aclrtMemcpy(void *to, size_t room, const void *from, size_t size, int kind) { memcpy(to, from, size); return OK; }
int aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t size, int kind, void *stream) {
    memcpy(to, from, size);
    return OK;
}
int aclrtMemset(void *to, size_t room, int32_t value, size_t size) { memset(to, value, size); return OK; }
int aclrtGetMemInfo(int kind, size_t *unused, size_t *total) { *unused = *total = MEMORY; return OK; }

int aclrtGetSysParamOpt(int option, int64_t *value) { *value = 0; return OK; }
int aclrtCtxGetSysParamOpt(int option, int64_t *value) { *value = 0; return OK; }
int aclrtSetSysParamOpt(int option, int64_t value) { return OK; }
int aclrtCtxSetSysParamOpt(int option, int64_t value) { return OK; }
int aclrtSetDeviceSatMode(int mode) { return OK; }
int aclrtSetOpExecuteTimeOut(uint32_t seconds) { return OK; }
int aclSetCompileopt(int option, const char *value) { return OK; }
