// Codecs by name. The public list is oscar/codec.h; the kernels of each codec join it in registry.cc.
#pragma once

#include "oscar/codec.h"
