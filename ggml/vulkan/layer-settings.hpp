// Vulkan-Hpp before 1.3.272 (Debian 12 has 1.3.239) lacks VK_EXT_layer_settings, which ggml-vulkan names once, for the
// validation layers of debug builds. This declares what it needs, with the layout of the Vulkan registry; included before every
// file of ggml-vulkan, it is empty where the headers have the extension.

#pragma once

#include <vulkan/vulkan_core.h>

#ifndef VK_EXT_layer_settings

#include <cstdint>
#include <vector>

namespace vk {

enum class LayerSettingTypeEXT : int32_t { eBool32 = 0 };

struct LayerSettingEXT {
    const char        * layer;
    const char        * name;
    LayerSettingTypeEXT type;
    uint32_t            n_value;
    const void        * values;
};

struct LayerSettingsCreateInfoEXT {
    explicit LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT> & all) : n_setting((uint32_t) all.size()), settings(all.data()) {}

    int32_t                 type = 1000496000; // VK_STRUCTURE_TYPE_LAYER_SETTINGS_CREATE_INFO_EXT
    const void            * next = nullptr;
    uint32_t                n_setting;
    const LayerSettingEXT * settings;
};

} // namespace vk

#endif
