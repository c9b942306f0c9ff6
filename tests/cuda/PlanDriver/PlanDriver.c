// SPDX-License-Identifier: MIT

// A libcuda.so.1 that loads any code and runs none. With it, cuDNN can compile
// a plan for a described device without a GPU. cuDNN looks up functions by
// name. To plan, it only loads code.

enum { kSuccess = 0, kNoDevice = 100 };

// The handles of a loaded library, its kernel and its function are all the
// address of the code.
int cuLibraryLoadData(void **library, const void *code) {
  *library = (void *)code;
  return kSuccess;
}
int cuLibraryGetKernel(void **kernel, void *library) {
  *kernel = library;
  return kSuccess;
}
int cuKernelGetFunction(void **function, void *kernel) {
  *function = kernel;
  return kSuccess;
}
int cuLibraryUnload(void *library) { return library ? kSuccess : 1; }
int cuKernelSetAttribute(void) { return kSuccess; }
int cuKernelGetAttribute(int *value) {
  *value = 0;
  return kSuccess;
}

int cuDriverGetVersion(int *version) {
  *version = 13000;
  return kSuccess;
}
int cuGetErrorName(int error, const char **text) {
  *text = error == kNoDevice ? "CUDA_ERROR_NO_DEVICE" : "an error";
  return kSuccess;
}
int cuGetErrorString(int error, const char **text) {
  return cuGetErrorName(error, text);
}

// There is no device.
int cuInit(unsigned flags) { return flags ? 1 : kNoDevice; }
int cuDeviceGetCount(int *count) {
  *count = 0;
  return kSuccess;
}
#define NO_DEVICE(Name)                                                        \
  int Name(void) { return kNoDevice; }
NO_DEVICE(cuCtxGetCurrent)
NO_DEVICE(cuCtxGetLimit)
NO_DEVICE(cuCtxPopCurrent)
NO_DEVICE(cuCtxPushCurrent)
NO_DEVICE(cuDeviceGet)
NO_DEVICE(cuLaunchCooperativeKernel)
NO_DEVICE(cuLaunchKernel)
NO_DEVICE(cuLaunchKernelEx)
NO_DEVICE(cuLibraryLoadFromFile)
NO_DEVICE(cuLinkAddData)
NO_DEVICE(cuLinkComplete)
NO_DEVICE(cuLinkCreate)
NO_DEVICE(cuLinkDestroy)
NO_DEVICE(cuOccupancyMaxPotentialClusterSize)
NO_DEVICE(cuStreamGetCtx)
NO_DEVICE(cuThreadExchangeStreamCaptureMode)
NO_DEVICE(cuModuleGetFunction)
NO_DEVICE(cuModuleLoadData)
NO_DEVICE(cuModuleUnload)
NO_DEVICE(cuTensorMapEncodeIm2col)
NO_DEVICE(cuTensorMapEncodeTiled)
