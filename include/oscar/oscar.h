// Umbrella header of liboscar.
#pragma once

#include "oscar/calibrate.h"
#include "oscar/codec.h"
#include "oscar/codec_profile.h"
#include "oscar/executor.h"
#include "oscar/kernels.h"
#include "oscar/kv_cache.h"
#include "oscar/kv_transform.h"
#include "oscar/prefix_cache.h"
#include "oscar/reference.h"
#include "oscar/result.h"
#include "oscar/types.h"
#include "oscar/version.h"
