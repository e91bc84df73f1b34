// Loaded before other libraries: no Vulkan buffer is ever destroyed.
//
// Mesa's software device of Debian 12 still reads a buffer's description after the buffer was destroyed, and ends the program when ggml-vulkan
// replaces one of its own by a larger one, with llama.cpp's own cache too. The description is kept, the memory behind it is freed.

// RTLD_NEXT
#define _GNU_SOURCE

#include <dlfcn.h>
#include <string.h>
#include <vulkan/vulkan_core.h>

static void keep_buffer(VkDevice device, VkBuffer buffer, const VkAllocationCallbacks * callbacks) {
    (void) device;
    (void) buffer;
    (void) callbacks;
}

static PFN_vkVoidFunction or_ours(const char * name, PFN_vkVoidFunction theirs) {
    return strcmp(name, "vkDestroyBuffer") == 0 ? (PFN_vkVoidFunction) keep_buffer : theirs;
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetDeviceProcAddr(VkDevice device, const char * name) {
    PFN_vkGetDeviceProcAddr real;
    // POSIX lets a pointer to an object hold one to a function; C has no cast for it
    void * symbol = dlsym(RTLD_NEXT, "vkGetDeviceProcAddr");
    memcpy(&real, &symbol, sizeof(real));
    return or_ours(name, real(device, name));
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance instance, const char * name) {
    PFN_vkGetInstanceProcAddr real;
    void * symbol = dlsym(RTLD_NEXT, "vkGetInstanceProcAddr");
    memcpy(&real, &symbol, sizeof(real));
    if (strcmp(name, "vkGetDeviceProcAddr") == 0) {
        return (PFN_vkVoidFunction) vkGetDeviceProcAddr;
    }
    return or_ours(name, real(instance, name));
}
