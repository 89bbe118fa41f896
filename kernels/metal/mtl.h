/* mtl.h - the methods of Metal that perigee calls: one table.
 *
 * From the table come the selectors, a typed C function per method (pe_mtl_NAME) and a self-test
 * that compares our idea of every signature with the class of a living object, so that a misspelt
 * selector or a wrong argument is a line of a report and not a crash. A protocol's methods are
 * tested on an object that implements it; class methods have an owner that begins with `+`.
 *
 * Enumerators are Apple's numbers under our names. Methods of an object that is nil do nothing and
 * return 0, as in Objective-C. */
#ifndef PE_METAL_MTL_H
#define PE_METAL_MTL_H

#include "kernels/metal/objc.h"

enum { PE_MTL_STORAGE_SHARED = 0 };
enum { PE_MTL_DISPATCH_CONCURRENT = 1 };
enum { PE_MTL_BARRIER_BUFFERS = 1 };
enum { PE_MTL_TYPE_UINT = 33 };
enum { PE_MTL_FAMILY_APPLE7 = 1007, PE_MTL_FAMILY_METAL3 = 5001, PE_MTL_FAMILY_METAL4 = 5002 };
enum { PE_MTL_MATH_SAFE = 0 };
enum { PE_MTL_LANGUAGE_3_1 = (3 << 16) + 1 };
enum { PE_MTL_STATUS_COMPLETED = 4, PE_MTL_STATUS_ERROR = 5 };
/* Of MTLCommandBufferError: the first and the last end all work of this process. */
enum { PE_MTL_ERROR_REVOKED = 4, PE_MTL_ERROR_MEMORY = 8, PE_MTL_ERROR_REMOVED = 11 };

/* owner, result, name, selector, arguments; the digit is their number */
#define PE_MTL_METHODS(M0, M1, M2, M3, M4)                                                         \
  M0(+NSObject, pe_id, alloc, "alloc")                                                             \
  M0(NSObject, pe_id, init, "init")                                                                \
  M0(NSObject, pe_id, retain, "retain")                                                            \
  M0(NSObject, void, release, "release")                                                           \
  M1(NSObject, bool, responds, "respondsToSelector:", pe_sel)                                      \
  M1(+NSString, pe_id, string, "stringWithUTF8String:", const char *)                              \
  M0(NSString, const char *, text, "UTF8String")                                                   \
  M0(NSError, pe_id, error_text, "localizedDescription")                                           \
  M0(NSError, pe_nsint, error_code, "code")                                                        \
  M1(+NSURL, pe_id, file_url, "fileURLWithPath:", pe_id)                                           \
  M1(+NSArray, pe_id, array_of_one, "arrayWithObject:", pe_id)                                     \
  M0(MTLDevice, pe_id, device_name, "name")                                                        \
  M1(MTLDevice, bool, device_family, "supportsFamily:", pe_nsint)                                  \
  M0(MTLDevice, bool, device_unified, "hasUnifiedMemory")                                          \
  M0(MTLDevice, pe_nsuint, device_working_set, "recommendedMaxWorkingSetSize")                     \
  M0(MTLDevice, pe_nsuint, device_most_bytes, "maxBufferLength")                                   \
  M0(MTLDevice, pe_nsuint, device_group_bytes, "maxThreadgroupMemoryLength")                       \
  M0(MTLDevice, pe_id, device_queue, "newCommandQueue")                                            \
  M0(MTLDevice, pe_id, device_event, "newSharedEvent")                                             \
  M2(MTLDevice, pe_id, device_buffer, "newBufferWithLength:options:", pe_nsuint, pe_nsuint)        \
  M4(MTLDevice, pe_id, device_wrap,                                                                \
     "newBufferWithBytesNoCopy:length:options:deallocator:", void *, pe_nsuint, pe_nsuint,         \
     pe_block)                                                                                     \
  M3(MTLDevice, pe_id, device_library, "newLibraryWithSource:options:error:", pe_id, pe_id,        \
     pe_id *)                                                                                      \
  M4(MTLDevice, pe_id, device_pipeline,                                                            \
     "newComputePipelineStateWithDescriptor:options:reflection:error:", pe_id, pe_nsuint, pe_id *, \
     pe_id *)                                                                                      \
  M2(MTLDevice, pe_id, device_archive, "newBinaryArchiveWithDescriptor:error:", pe_id, pe_id *)    \
  M2(MTLDevice, pe_id, device_residency, "newResidencySetWithDescriptor:error:", pe_id, pe_id *)   \
  M1(MTLCompileOptions, void, options_math, "setMathMode:", pe_nsint)                              \
  M1(MTLCompileOptions, void, options_fast, "setFastMathEnabled:", bool)                           \
  M1(MTLCompileOptions, void, options_language, "setLanguageVersion:", pe_nsuint)                  \
  M3(MTLFunctionConstantValues, void, constants_set,                                               \
     "setConstantValue:type:atIndex:", const void *, pe_nsuint, pe_nsuint)                         \
  M3(MTLLibrary, pe_id, library_function, "newFunctionWithName:constantValues:error:", pe_id,      \
     pe_id, pe_id *)                                                                               \
  M1(MTLComputePipelineDescriptor, void, descriptor_function, "setComputeFunction:", pe_id)        \
  M1(MTLComputePipelineDescriptor, void, descriptor_archives, "setBinaryArchives:", pe_id)         \
  M0(MTLComputePipelineState, pe_nsuint, pipeline_threads, "maxTotalThreadsPerThreadgroup")        \
  M0(MTLComputePipelineState, pe_nsuint, pipeline_width, "threadExecutionWidth")                   \
  M1(MTLBinaryArchiveDescriptor, void, archive_url, "setUrl:", pe_id)                              \
  M2(MTLBinaryArchive, bool, archive_add,                                                          \
     "addComputePipelineFunctionsWithDescriptor:error:", pe_id, pe_id *)                           \
  M2(MTLBinaryArchive, bool, archive_save, "serializeToURL:error:", pe_id, pe_id *)                \
  M0(MTLCommandQueue, pe_id, queue_commands, "commandBuffer")                                      \
  M1(MTLCommandQueue, void, queue_residency, "addResidencySet:", pe_id)                            \
  M1(MTLCommandBuffer, pe_id, commands_encoder,                                                    \
     "computeCommandEncoderWithDispatchType:", pe_nsuint)                                          \
  M0(MTLCommandBuffer, void, commands_commit, "commit")                                            \
  M0(MTLCommandBuffer, void, commands_wait, "waitUntilCompleted")                                  \
  M0(MTLCommandBuffer, pe_nsuint, commands_status, "status")                                       \
  M0(MTLCommandBuffer, pe_id, commands_error, "error")                                             \
  M2(MTLCommandBuffer, void, commands_signal, "encodeSignalEvent:value:", pe_id, pe_nsuint)        \
  M1(MTLComputeCommandEncoder, void, encoder_pipeline, "setComputePipelineState:", pe_id)          \
  M3(MTLComputeCommandEncoder, void, encoder_buffer, "setBuffer:offset:atIndex:", pe_id,           \
     pe_nsuint, pe_nsuint)                                                                         \
  M3(MTLComputeCommandEncoder, void, encoder_bytes, "setBytes:length:atIndex:", const void *,      \
     pe_nsuint, pe_nsuint)                                                                         \
  M2(MTLComputeCommandEncoder, void, encoder_dispatch,                                             \
     "dispatchThreadgroups:threadsPerThreadgroup:", pe_size3, pe_size3)                            \
  M1(MTLComputeCommandEncoder, void, encoder_barrier, "memoryBarrierWithScope:", pe_nsuint)        \
  M0(MTLComputeCommandEncoder, void, encoder_end, "endEncoding")                                   \
  M0(MTLSharedEvent, pe_nsuint, event_value, "signaledValue")                                      \
  M2(MTLSharedEvent, bool, event_wait, "waitUntilSignaledValue:timeoutMS:", pe_nsuint, pe_nsuint)  \
  M0(MTLBuffer, void *, buffer_contents, "contents")                                               \
  M0(MTLBuffer, pe_nsuint, buffer_length, "length")                                                \
  M1(MTLResidencySet, void, residency_add, "addAllocation:", pe_id)                                \
  M1(MTLResidencySet, void, residency_remove, "removeAllocation:", pe_id)                          \
  M0(MTLResidencySet, void, residency_commit, "commit")                                            \
  M0(MTLResidencySet, void, residency_request, "requestResidency")                                 \
  M0(MTLResidencySet, void, residency_end, "endResidency")

/* A block argument; we only ever pass none. */
typedef struct pe_objc_block *pe_block;

typedef enum pe_mtl_method {
#define PE_MTL_ENUM(owner, result, name, ...) PE_MTL_M_##name,
  PE_MTL_METHODS(PE_MTL_ENUM, PE_MTL_ENUM, PE_MTL_ENUM, PE_MTL_ENUM, PE_MTL_ENUM)
#undef PE_MTL_ENUM
      PE_MTL_METHOD_COUNT
} pe_mtl_method;

typedef struct pe_mtl_table { /* filled by pe_mtl_open, constant afterwards */
  void (*send)(void);
  pe_id (*get_class)(const char *name);
  pe_sel sel[PE_MTL_METHOD_COUNT];
} pe_mtl_table;
extern pe_mtl_table pe_mtl;

/* Called once by pe_objc_open. */
void pe_mtl_open(const pe_objc *o);

#define PE_MTL_CALL(type, name) ((type)pe_mtl.send)(o, pe_mtl.sel[PE_MTL_M_##name]
#define PE_MTL_0(owner, R, name, sel)                                                              \
  static inline R pe_mtl_##name(pe_id o) { return PE_MTL_CALL(R(*)(pe_id, pe_sel), name));         \
  }
#define PE_MTL_1(owner, R, name, sel, A)                                                           \
  static inline R pe_mtl_##name(pe_id o, A a) {                                                    \
    return PE_MTL_CALL(R(*)(pe_id, pe_sel, A), name), a);                                          \
  }
#define PE_MTL_2(owner, R, name, sel, A, B)                                                        \
  static inline R pe_mtl_##name(pe_id o, A a, B b) {                                               \
    return PE_MTL_CALL(R(*)(pe_id, pe_sel, A, B), name), a, b);                                    \
  }
#define PE_MTL_3(owner, R, name, sel, A, B, C)                                                     \
  static inline R pe_mtl_##name(pe_id o, A a, B b, C c) {                                          \
    return PE_MTL_CALL(R(*)(pe_id, pe_sel, A, B, C), name), a, b, c);                              \
  }
#define PE_MTL_4(owner, R, name, sel, A, B, C, D)                                                  \
  static inline R pe_mtl_##name(pe_id o, A a, B b, C c, D d) {                                     \
    return PE_MTL_CALL(R(*)(pe_id, pe_sel, A, B, C, D), name), a, b, c, d);                        \
  }
PE_MTL_METHODS(PE_MTL_0, PE_MTL_1, PE_MTL_2, PE_MTL_3, PE_MTL_4)
#undef PE_MTL_0
#undef PE_MTL_1
#undef PE_MTL_2
#undef PE_MTL_3
#undef PE_MTL_4
#undef PE_MTL_CALL

/* A new object of a class; NULL: this system has no such class. The caller releases it. */
pe_id pe_mtl_new(const char *class_name);
/* A string in the innermost pool. */
pe_id pe_mtl_string_of(const char *text);
bool pe_mtl_has(pe_id object, pe_mtl_method method);
/* Fills e from an NSError: "WHAT: DESCRIPTION". Returns false. */
bool pe_mtl_failed(pe_metal_error *e, const char *what, pe_id error);

/* Compares the table with the class of an object that has the methods of `owner`. Calls report with
 * a line for every difference, and returns their number. */
int pe_mtl_check(const pe_objc *o, pe_id object, const char *owner,
                 void (*report)(void *ctx, const char *line), void *ctx);

#endif
