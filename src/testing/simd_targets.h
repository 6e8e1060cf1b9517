// Runs a test body once per SIMD target that this machine can run and the binary holds. Include after base/simd_targets.h has
// set what is built.
#pragma once

#include "src/base/simd_targets.h"

#include "hwy/highway.h"
#include "hwy/targets.h"

namespace oscar::testing {

// fn(name of the target) with dispatch pinned to it; dispatch is free again afterwards.
template <class Fn>
void OnEverySimdTarget(const Fn& fn) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    fn(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
}

}  // namespace oscar::testing
