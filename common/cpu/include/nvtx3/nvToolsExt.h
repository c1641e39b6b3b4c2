// NVTX: ranges and marks for a profiler, which here do nothing: no profiler of NVIDIA's reads them
// from a kernel on the CPU. Strings are narrow or wide, as in NVIDIA's header; resources are not
// here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cwchar>

#define NVTX_VERSION 3
#define NVTX_NO_PUSH_POP_TRACKING (-2)

using nvtxRangeId_t = uint64_t;
using nvtxDomainHandle_t = struct nvtxDomainRegistration_st*;
using nvtxStringHandle_t = struct nvtxStringRegistration_st*;

enum nvtxColorType_t { NVTX_COLOR_UNKNOWN = 0, NVTX_COLOR_ARGB = 1 };
enum nvtxMessageType_t {
  NVTX_MESSAGE_UNKNOWN = 0,
  NVTX_MESSAGE_TYPE_ASCII = 1,
  NVTX_MESSAGE_TYPE_UNICODE = 2,
  NVTX_MESSAGE_TYPE_REGISTERED = 3
};
enum nvtxPayloadType_t {
  NVTX_PAYLOAD_UNKNOWN = 0,
  NVTX_PAYLOAD_TYPE_UNSIGNED_INT64 = 1,
  NVTX_PAYLOAD_TYPE_INT64 = 2,
  NVTX_PAYLOAD_TYPE_DOUBLE = 3,
  NVTX_PAYLOAD_TYPE_UNSIGNED_INT32 = 4,
  NVTX_PAYLOAD_TYPE_INT32 = 5,
  NVTX_PAYLOAD_TYPE_FLOAT = 6
};

union nvtxMessageValue_t {
  const char* ascii;
  const wchar_t* unicode;
  nvtxStringHandle_t registered;
};
struct nvtxEventAttributes_t {
  uint16_t version;
  uint16_t size;
  uint32_t category;
  int32_t colorType;
  uint32_t color;
  int32_t payloadType;
  int32_t reserved0;
  union payload_t {
    uint64_t ullValue;
    int64_t llValue;
    double dValue;
    uint32_t uiValue;
    int32_t iValue;
    float fValue;
  } payload;
  int32_t messageType;
  nvtxMessageValue_t message;
};
#define NVTX_EVENT_ATTRIB_STRUCT_SIZE (static_cast<uint16_t>(sizeof(nvtxEventAttributes_t)))

inline void nvtxInitialize(const void*) {}

inline void nvtxMarkEx(const nvtxEventAttributes_t*) {}
inline void nvtxMarkA(const char*) {}
inline void nvtxMarkW(const wchar_t*) {}
#define nvtxMark nvtxMarkA

inline nvtxRangeId_t nvtxRangeStartEx(const nvtxEventAttributes_t*) {
  return 0;
}
inline nvtxRangeId_t nvtxRangeStartA(const char*) {
  return 0;
}
inline nvtxRangeId_t nvtxRangeStartW(const wchar_t*) {
  return 0;
}
inline void nvtxRangeEnd(nvtxRangeId_t) {}
#define nvtxRangeStart nvtxRangeStartA

// Begin a range. The depth is not known, as without an attached tool.
inline int nvtxRangePushEx(const nvtxEventAttributes_t*) {
  return NVTX_NO_PUSH_POP_TRACKING;
}
inline int nvtxRangePushA(const char*) {
  return NVTX_NO_PUSH_POP_TRACKING;
}
inline int nvtxRangePushW(const wchar_t*) {
  return NVTX_NO_PUSH_POP_TRACKING;
}
inline int nvtxRangePop() {
  return NVTX_NO_PUSH_POP_TRACKING;
}
#define nvtxRangePush nvtxRangePushA

inline void nvtxNameCategoryA(uint32_t, const char*) {}
inline void nvtxNameOsThreadA(uint32_t, const char*) {}
#define nvtxNameCategory nvtxNameCategoryA
#define nvtxNameOsThread nvtxNameOsThreadA

inline nvtxDomainHandle_t nvtxDomainCreateA(const char*) {
  return nullptr;
}
inline void nvtxDomainDestroy(nvtxDomainHandle_t) {}
inline void nvtxDomainMarkEx(nvtxDomainHandle_t, const nvtxEventAttributes_t*) {}
inline nvtxRangeId_t nvtxDomainRangeStartEx(nvtxDomainHandle_t, const nvtxEventAttributes_t*) {
  return 0;
}
inline void nvtxDomainRangeEnd(nvtxDomainHandle_t, nvtxRangeId_t) {}
inline int nvtxDomainRangePushEx(nvtxDomainHandle_t, const nvtxEventAttributes_t*) {
  return NVTX_NO_PUSH_POP_TRACKING;
}
inline int nvtxDomainRangePop(nvtxDomainHandle_t) {
  return NVTX_NO_PUSH_POP_TRACKING;
}
inline nvtxStringHandle_t nvtxDomainRegisterStringA(nvtxDomainHandle_t, const char*) {
  return nullptr;
}
#define nvtxDomainCreate nvtxDomainCreateA
#define nvtxDomainRegisterString nvtxDomainRegisterStringA
