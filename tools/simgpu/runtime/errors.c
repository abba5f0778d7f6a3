/* errors.c: error codes, and CUDA's rules about when a program sees which. */
#include "cudart.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>

/* A kernel's fault corrupts the context: the first call that waits for the device sees it, then every call does. */
static _Atomic int fault_code;
static atomic_bool fault_seen;
static __thread cudaError_t last_error;
static __thread bool in_host_function;

cudaError_t record(cudaError_t error)
{
    if (error != cudaSuccess) last_error = error;
    return error;
}

cudaError_t fail(cudaError_t error, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "simgpu: %s\n", text);
    return record(error);
}

void device_fault(cudaError_t error)
{
    int none = 0;
    atomic_compare_exchange_strong(&fault_code, &none, (int)error);
}

bool device_dead(void)
{
    return atomic_load(&fault_code) != 0;
}

cudaError_t device_wait(void)
{
    if (device_dead()) atomic_store(&fault_seen, true);
    return context_error();
}

cudaError_t context_error(void)
{
    if (in_host_function) {
        fprintf(stderr, "simgpu: a host function called by a stream must not call CUDA\n");
        return cudaErrorNotPermitted;
    }
    return atomic_load(&fault_seen) ? (cudaError_t)atomic_load(&fault_code) : cudaSuccess;
}

void host_function_begin(void)
{
    in_host_function = true;
}
void host_function_end(void)
{
    in_host_function = false;
}

EXPORT cudaError_t cudaPeekAtLastError(void)
{
    return atomic_load(&fault_seen) ? (cudaError_t)atomic_load(&fault_code) : last_error;
}

EXPORT cudaError_t cudaGetLastError(void)
{
    cudaError_t error = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return error;
}

/* Every code of driver_types.h with its message: NVIDIA's wording where programs are known to print it. */
static const struct message {
    cudaError_t code;
    const char *name, *text;
} messages[] = {
#define MESSAGE(code, text) \
    {                       \
        code, #code, text   \
    }
    MESSAGE(cudaSuccess, "no error"),
    MESSAGE(cudaErrorInvalidValue, "invalid argument"),
    MESSAGE(cudaErrorMemoryAllocation, "out of memory"),
    MESSAGE(cudaErrorInitializationError, "initialization error"),
    MESSAGE(cudaErrorCudartUnloading, "driver shutting down"),
    MESSAGE(cudaErrorProfilerDisabled, "the profiler is disabled"),
    MESSAGE(cudaErrorProfilerNotInitialized, "the profiler is not initialized"),
    MESSAGE(cudaErrorProfilerAlreadyStarted, "the profiler has already started"),
    MESSAGE(cudaErrorProfilerAlreadyStopped, "the profiler has already stopped"),
    MESSAGE(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    MESSAGE(cudaErrorInvalidPitchValue, "invalid pitch argument"),
    MESSAGE(cudaErrorInvalidSymbol, "invalid device symbol"),
    MESSAGE(cudaErrorInvalidHostPointer, "invalid host pointer"),
    MESSAGE(cudaErrorInvalidDevicePointer, "invalid device pointer"),
    MESSAGE(cudaErrorInvalidTexture, "invalid texture"),
    MESSAGE(cudaErrorInvalidTextureBinding, "texture is not bound to a pointer"),
    MESSAGE(cudaErrorInvalidChannelDescriptor, "invalid channel descriptor"),
    MESSAGE(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    MESSAGE(cudaErrorAddressOfConstant, "the address of a constant cannot be taken"),
    MESSAGE(cudaErrorTextureFetchFailed, "fetch from a texture failed"),
    MESSAGE(cudaErrorTextureNotBound, "a texture is not bound"),
    MESSAGE(cudaErrorSynchronizationError, "a synchronization failed"),
    MESSAGE(cudaErrorInvalidFilterSetting, "linear filtering is not supported for this texture's type"),
    MESSAGE(cudaErrorInvalidNormSetting, "this texture's type cannot be read as normalized float"),
    MESSAGE(cudaErrorMixedDeviceExecution, "device emulation and device execution were mixed"),
    MESSAGE(cudaErrorNotYetImplemented, "not yet implemented"),
    MESSAGE(cudaErrorMemoryValueTooLarge, "a memory handle's value is too large"),
    MESSAGE(cudaErrorStubLibrary, "the CUDA driver is a stub library"),
    MESSAGE(cudaErrorInsufficientDriver, "the CUDA driver is older than this CUDA runtime"),
    MESSAGE(cudaErrorCallRequiresNewerDriver, "this call needs a newer CUDA driver"),
    MESSAGE(cudaErrorInvalidSurface, "invalid surface"),
    MESSAGE(cudaErrorDuplicateVariableName, "several global or constant variables share one name"),
    MESSAGE(cudaErrorDuplicateTextureName, "several textures share one name"),
    MESSAGE(cudaErrorDuplicateSurfaceName, "several surfaces share one name"),
    MESSAGE(cudaErrorDevicesUnavailable, "all CUDA-capable devices are busy or unavailable"),
    MESSAGE(cudaErrorIncompatibleDriverContext, "the driver's context does not suit this runtime"),
    MESSAGE(cudaErrorMissingConfiguration, "__global__ function call is not configured"),
    MESSAGE(cudaErrorPriorLaunchFailure, "an earlier launch failed"),
    MESSAGE(cudaErrorLaunchMaxDepthExceeded, "a launch would exceed the maximum depth of nested launches"),
    MESSAGE(cudaErrorLaunchFileScopedTex, "a nested launch uses file-scoped textures"),
    MESSAGE(cudaErrorLaunchFileScopedSurf, "a nested launch uses file-scoped surfaces"),
    MESSAGE(cudaErrorSyncDepthExceeded, "a nested launch synchronizes too deep"),
    MESSAGE(cudaErrorLaunchPendingCountExceeded, "too many nested launches are pending"),
    MESSAGE(cudaErrorInvalidDeviceFunction, "invalid device function"),
    MESSAGE(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    MESSAGE(cudaErrorInvalidDevice, "invalid device ordinal"),
    MESSAGE(cudaErrorDeviceNotLicensed, "the device has no valid licence"),
    MESSAGE(cudaErrorSoftwareValidityNotEstablished, "the software's integrity could not be established"),
    MESSAGE(cudaErrorStartupFailure, "startup failure in the CUDA runtime"),
    MESSAGE(cudaErrorInvalidKernelImage, "device kernel image is invalid"),
    MESSAGE(cudaErrorDeviceUninitialized, "invalid device context"),
    MESSAGE(cudaErrorMapBufferObjectFailed, "a buffer object could not be mapped"),
    MESSAGE(cudaErrorUnmapBufferObjectFailed, "a buffer object could not be unmapped"),
    MESSAGE(cudaErrorArrayIsMapped, "the array is mapped"),
    MESSAGE(cudaErrorAlreadyMapped, "the resource is already mapped"),
    MESSAGE(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device"),
    MESSAGE(cudaErrorAlreadyAcquired, "the resource is already acquired"),
    MESSAGE(cudaErrorNotMapped, "the resource is not mapped"),
    MESSAGE(cudaErrorNotMappedAsArray, "the resource is not mapped as an array"),
    MESSAGE(cudaErrorNotMappedAsPointer, "the resource is not mapped as a pointer"),
    MESSAGE(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered"),
    MESSAGE(cudaErrorUnsupportedLimit, "this limit is not supported by the device"),
    MESSAGE(cudaErrorDeviceAlreadyInUse, "the device is already in use by another thread"),
    MESSAGE(cudaErrorPeerAccessUnsupported, "peer access is not supported between these two devices"),
    MESSAGE(cudaErrorInvalidPtx, "a PTX JIT compilation failed"),
    MESSAGE(cudaErrorInvalidGraphicsContext, "invalid graphics context"),
    MESSAGE(cudaErrorNvlinkUncorrectable, "uncorrectable NVLink error"),
    MESSAGE(cudaErrorJitCompilerNotFound, "the PTX JIT compiler was not found"),
    MESSAGE(cudaErrorUnsupportedPtxVersion, "the provided PTX was compiled with an unsupported toolchain"),
    MESSAGE(cudaErrorJitCompilationDisabled, "PTX JIT compilation is disabled"),
    MESSAGE(cudaErrorUnsupportedExecAffinity, "this execution affinity is not supported by the device"),
    MESSAGE(cudaErrorUnsupportedDevSideSync,
            "device code calls cudaDeviceSynchronize, which is not supported"),
    MESSAGE(cudaErrorContained, "a memory error was contained; the application must be restarted"),
    MESSAGE(cudaErrorInvalidSource, "device kernel source is invalid"),
    MESSAGE(cudaErrorFileNotFound, "file not found"),
    MESSAGE(cudaErrorSharedObjectSymbolNotFound, "a symbol in a shared object could not be resolved"),
    MESSAGE(cudaErrorSharedObjectInitFailed, "a shared object could not be initialized"),
    MESSAGE(cudaErrorOperatingSystem, "a call to the operating system failed"),
    MESSAGE(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    MESSAGE(cudaErrorIllegalState, "a resource is not in the state this call needs"),
    MESSAGE(cudaErrorLossyQuery, "this query would lose information"),
    MESSAGE(cudaErrorSymbolNotFound, "named symbol not found"),
    MESSAGE(cudaErrorNotReady, "device not ready"),
    MESSAGE(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    MESSAGE(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    MESSAGE(cudaErrorLaunchTimeout, "the launch timed out and was terminated"),
    MESSAGE(cudaErrorLaunchIncompatibleTexturing, "a launch's texturing mode is incompatible"),
    MESSAGE(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    MESSAGE(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled"),
    MESSAGE(cudaErrorSetOnActiveProcess, "this cannot be set while the process is using the device"),
    MESSAGE(cudaErrorContextIsDestroyed, "the context is destroyed"),
    MESSAGE(cudaErrorAssert, "device-side assert triggered"),
    MESSAGE(cudaErrorTooManyPeers, "peer mapping resources are exhausted"),
    MESSAGE(cudaErrorHostMemoryAlreadyRegistered, "part or all of the memory is already registered"),
    MESSAGE(cudaErrorHostMemoryNotRegistered, "the memory is not registered"),
    MESSAGE(cudaErrorHardwareStackError, "hardware stack error"),
    MESSAGE(cudaErrorIllegalInstruction, "an illegal instruction was encountered"),
    MESSAGE(cudaErrorMisalignedAddress, "misaligned address"),
    MESSAGE(cudaErrorInvalidAddressSpace, "operation not supported on global/shared address space"),
    MESSAGE(cudaErrorInvalidPc, "invalid program counter"),
    MESSAGE(cudaErrorLaunchFailure, "unspecified launch failure"),
    MESSAGE(cudaErrorCooperativeLaunchTooLarge, "too many blocks in cooperative launch"),
    MESSAGE(cudaErrorTensorMemoryLeak, "a kernel left tensor memory allocated"),
    MESSAGE(cudaErrorNotPermitted, "operation not permitted"),
    MESSAGE(cudaErrorNotSupported, "operation not supported"),
    MESSAGE(cudaErrorSystemNotReady, "the system is not ready for CUDA"),
    MESSAGE(cudaErrorSystemDriverMismatch, "driver and system software do not match"),
    MESSAGE(cudaErrorCompatNotSupportedOnDevice, "the device does not support forward compatibility"),
    MESSAGE(cudaErrorMpsConnectionFailed, "the MPS client cannot reach its server"),
    MESSAGE(cudaErrorMpsRpcFailure, "a remote call to the MPS server failed"),
    MESSAGE(cudaErrorMpsServerNotReady, "the MPS server is not ready"),
    MESSAGE(cudaErrorMpsMaxClientsReached, "the MPS server has no room for another client"),
    MESSAGE(cudaErrorMpsMaxConnectionsReached, "the MPS server has no room for another connection"),
    MESSAGE(cudaErrorMpsClientTerminated, "the MPS server has ended this client"),
    MESSAGE(cudaErrorCdpNotSupported, "nested launches are not supported"),
    MESSAGE(cudaErrorCdpVersionMismatch, "versions of nested launches do not match"),
    MESSAGE(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    MESSAGE(cudaErrorStreamCaptureInvalidated, "the stream's capture is invalid after an earlier error"),
    MESSAGE(cudaErrorStreamCaptureMerge, "two independent captures would merge"),
    MESSAGE(cudaErrorStreamCaptureUnmatched, "the capture was not started in this stream"),
    MESSAGE(cudaErrorStreamCaptureUnjoined, "the capture left work that was never joined to its stream"),
    MESSAGE(cudaErrorStreamCaptureIsolation, "a capture depends on work outside it"),
    MESSAGE(cudaErrorStreamCaptureImplicit, "a capture depends on the default stream"),
    MESSAGE(cudaErrorCapturedEvent,
            "operation not permitted on an event last recorded in a capturing stream"),
    MESSAGE(cudaErrorStreamCaptureWrongThread, "the capture was started by another thread"),
    MESSAGE(cudaErrorTimeout, "a wait has timed out"),
    MESSAGE(cudaErrorGraphExecUpdateFailure, "the graph cannot be updated in this way"),
    MESSAGE(cudaErrorExternalDevice, "an asynchronous error came from outside the device"),
    MESSAGE(cudaErrorInvalidClusterSize, "invalid cluster size"),
    MESSAGE(cudaErrorFunctionNotLoaded, "the function is not loaded"),
    MESSAGE(cudaErrorInvalidResourceType, "the resource's type does not suit this call"),
    MESSAGE(cudaErrorInvalidResourceConfiguration, "the resource's configuration does not suit this call"),
    MESSAGE(cudaErrorUnknown, "unknown error"),
#undef MESSAGE
};

static const struct message *message_of(cudaError_t error)
{
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++)
        if (messages[i].code == error) return &messages[i];
    return NULL;
}

EXPORT const char *cudaGetErrorName(cudaError_t error)
{
    const struct message *m = message_of(error);
    return m ? m->name : "unrecognized error code";
}

EXPORT const char *cudaGetErrorString(cudaError_t error)
{
    const struct message *m = message_of(error);
    return m ? m->text : "unrecognized error code";
}
