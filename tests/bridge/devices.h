// Which devices a bridge test runs on.

#ifndef DEVICES_H
#define DEVICES_H

#include "llama.h"

struct device_options {
    int          n_fake;   // devices without hardware
    const char * rpc;      // servers, "HOST:PORT,HOST:PORT"
    const char * names;    // in this order, instead of llama.cpp's choice: "Vulkan0,Vulkan1"
    const char * split;    // layer, row, tensor or none
    const char * to_host;  // tensors with such names stay in the memory of the host
};

// true if the option is one of these
bool device_option(struct device_options * opt, const char * key, const char * value);

// Adds devices, before a model is loaded.
void add_devices(const struct device_options * opt);
void add_fake_devices(int n);

// What it sets points into memory of this file.
void use_devices(struct llama_model_params * params, const struct device_options * opt);

// whether there is any but the CPU
bool has_device(void);

#endif // DEVICES_H
