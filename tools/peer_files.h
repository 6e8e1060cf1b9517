// bench/baselines/llamacpp/build_llamacpp and step_server.cc, which `oscar bench --against llama.cpp` builds in the user's cache folder.
#pragma once

namespace oscar::tools {

extern const char* const kLlamaCppBuildScript;
extern const char* const kStepServerSource;

}  // namespace oscar::tools
